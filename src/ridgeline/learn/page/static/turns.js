// Who draws when. What a hand moves is drawn in the frame that it moves in. What follows from that takes turns, one part
// after the other for as long as a frame has time, each with what is so when its turn comes. While a hand moves, parts
// that are out of sight wait until it rests, or until they come into sight.

import { Component, h, useLayoutEffect, useRef, useState } from "page/dom.js";

const FREE = 5; // milliseconds of a frame for those that follow
const REST = 200; // milliseconds without a change after which a hand rests

const [near, far] = [new Set(), new Set()]; // those that wait, in and out of sight, in the order of their turns
const parts = new WeakMap(); // by element
let [frame, timer, observer] = [0, 0, null];

/** part: {turn(), seen, last: when it waited before}. */
function wait(part) {
  const now = performance.now();
  (part.seen || now - part.last > REST ? near : far).add(part);
  part.last = now;
  frame ||= requestAnimationFrame(go);
  clearTimeout(timer);
  timer = setTimeout(() => far.forEach(comeNear), REST);
}

function comeNear(part) {
  if (far.delete(part)) near.add(part);
  frame ||= requestAnimationFrame(go);
}

/** At least one of them; they are drawn before `await` gives back. */
async function go() {
  const begun = performance.now();
  for (const part of near) {
    near.delete(part);
    part.turn();
    await null;
    if (performance.now() - begun > FREE) break;
  }
  frame = near.size ? requestAnimationFrame(go) : 0;
}

/** Know whether a part is in sight. Returns what ends that, and its waiting. */
function watch(part, element) {
  observer ??= new IntersectionObserver((found) => {
    for (const { target, isIntersecting } of found) {
      const own = parts.get(target);
      own.seen = isIntersecting;
      if (isIntersecting) comeNear(own);
    }
  });
  parts.set(element, part);
  observer.observe(element);
  return () => {
    observer.unobserve(element);
    near.delete(part);
    far.delete(part);
  };
}

/** A value as it was at the last turn of the part whose element is in the box, a reference. */
export function useTurn(value, box) {
  const [shown, show] = useState(value);
  const own = useRef(null);
  own.current ??= { seen: true, last: 0, turn: () => show(own.current.value) };
  own.current.value = value;
  useLayoutEffect(() => {
    if (value !== shown) wait(own.current);
  }, [value]);
  useLayoutEffect(() => watch(own.current, box.current), []);
  return shown;
}

/** The same component, drawn in its turn, and only where what it is given has changed. */
export function inTurn(Drawn) {
  return class InTurn extends Component {
    constructor(given) {
      super(given);
      this.state = { shown: given };
      this.part = { seen: true, last: 0, turn: () => this.setState({ shown: this.props }) };
    }

    componentDidMount() {
      this.leave = watch(this.part, this.base);
    }

    shouldComponentUpdate(given, { shown }) {
      if (shown !== this.state.shown) return true;
      if (differs(given, shown)) wait(this.part);
      return false;
    }

    componentWillUnmount() {
      this.leave();
    }

    render(_, { shown }) {
      return h(Drawn, shown);
    }
  };
}

function differs(some, others) {
  const names = Object.keys(some);
  return names.length !== Object.keys(others).length || names.some((name) => !Object.is(some[name], others[name]));
}
