// Names in a chart: each has several places to stand, and takes the first at which it covers no other. Pure.

const SIZE = 12; // pixels of a name's letters
const LETTER = 0.62; // of a letter's height that it is wide, on average

export class Labels {
  /** The edges of the chart's inside, in pixels. */
  constructor({ left, right, top, bottom }) {
    Object.assign(this, { left, right, top, bottom, taken: [] });
  }

  /** Take the room of a name where it stands: {x, y, anchor} as SVG has it. */
  take(words, place, size = SIZE) {
    this.taken.push(roomOf(words, place, size));
    return place;
  }

  /** The first of some places where a name is inside and covers no other, or null; its room is taken then. */
  place(words, places, size = SIZE) {
    const found = places.find((place) => this.#holds(roomOf(words, place, size)));
    return found ? this.take(words, found, size) : null;
  }

  /** Whether there is room for all of [words, place]. */
  isFree(...names) {
    return names.every(([words, place]) => this.#holds(roomOf(words, place, SIZE)));
  }

  #holds({ left, right, top, bottom }) {
    const inside = left >= this.left && right <= this.right && top >= this.top && bottom <= this.bottom;
    return inside && this.taken.every((other) => left >= other.right || right <= other.left || top >= other.bottom || bottom <= other.top);
  }
}

/** words: a line, or several below each other. */
function roomOf(words, { x, y, anchor = "start" }, size) {
  const lines = [words].flat();
  const width = LETTER * size * Math.max(...lines.map((line) => line.length));
  const left = { start: x, middle: x - width / 2, end: x - width }[anchor];
  return { left, right: left + width, top: y - size, bottom: y + 0.3 * size + (lines.length - 1) * 1.35 * size };
}
