// The order of drawing. What the user drags is drawn in the same frame. Parts that follow from it take turns, one after
// the other for as long as a frame has time, each with the state at its turn. During a drag, hidden parts wait until it
// ends or until they become visible.

import { Component, h, useLayoutEffect, useRef, useState } from "page/dom.js";

const FREE = 5; // milliseconds of a frame for the parts that follow
const REST = 200; // milliseconds without a change after which a drag has ended

const [near, far] = [new Set(), new Set()]; // the waiting parts, visible and hidden, in the order of their turns
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

/** Draw at least one part, before the `await` returns. */
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

/** Track whether a part is visible. Returns a function that ends the tracking and the part's waiting. */
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

/** Return a value as it was at the last turn of the part whose element is in `box`, a reference. */
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

/** Return the component drawn in its turn, and only if its props have changed. */
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
