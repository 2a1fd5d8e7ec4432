// Who draws when. What a hand moves is drawn in the frame that it moves in; what follows from that takes turns, one part
// after the other for as long as a frame has time, each with what is so when its turn comes.

import { h, useLayoutEffect, useMemo, useRef, useState } from "page/dom.js";

const FREE = 5; // milliseconds of a frame for those that follow

const waiting = new Set(); // in the order of their turns
let frame = 0;

function wait(turn) {
  waiting.add(turn);
  frame ||= requestAnimationFrame(go);
}

/** At least one of them; they are drawn before `await` gives back. */
async function go() {
  const begun = performance.now();
  for (const turn of waiting) {
    waiting.delete(turn);
    turn();
    await null;
    if (performance.now() - begun > FREE) break;
  }
  frame = waiting.size ? requestAnimationFrame(go) : 0;
}

/** A value as it was at the last turn. */
export function useTurn(value) {
  const [shown, show] = useState(value);
  const own = useRef(null);
  own.current ??= { turn: () => show(own.current.value) };
  own.current.value = value;
  useLayoutEffect(() => {
    if (value !== shown) wait(own.current.turn);
  }, [value]);
  useLayoutEffect(() => () => waiting.delete(own.current.turn), []);
  return shown;
}

/** The same component, drawn in its turn, and only where what it is given has changed. */
export function inTurn(Drawn) {
  return function InTurn(given) {
    const last = useRef(given);
    if (differs(given, last.current)) last.current = given;
    const shown = useTurn(last.current);
    return useMemo(() => h(Drawn, shown), [shown]);
  };
}

function differs(some, others) {
  const names = Object.keys(some);
  return names.length !== Object.keys(others).length || names.some((name) => !Object.is(some[name], others[name]));
}
