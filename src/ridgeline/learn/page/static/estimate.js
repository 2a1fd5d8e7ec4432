// An estimate: {floor, bound, expected}, of seconds or of rates, as price/plan/request_phases.py has it. Pure.
//
//   estimateOf(steps)          the seconds of priced steps one after the other
//   both(a, b, choose)         what `choose` makes of each figure and that of another
//   each(a, change)            the same change of each figure
//   sum(a, b), scale(a, factor), perSecond(seconds, count)

export const ZERO = { floor: 0, bound: 0, expected: 0 };

export function estimateOf(steps) {
  return steps.reduce((total, step) => sum(total, step), ZERO);
}

export function both(a, b, choose) {
  return { floor: choose(a.floor, b.floor), bound: choose(a.bound, b.bound), expected: choose(a.expected, b.expected) };
}

export function each(a, change) {
  return { floor: change(a.floor), bound: change(a.bound), expected: change(a.expected) };
}

export const sum = (a, b) => both(a, b, (x, y) => x + y);
export const minus = (a, b) => both(a, b, (x, y) => x - y);
export const scale = (a, factor) => each(a, (x) => x * factor);
export const perSecond = (seconds, count) => each(seconds, (x) => count / x);
