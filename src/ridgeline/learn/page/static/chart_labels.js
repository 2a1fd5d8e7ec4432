// Labels of a chart: each has several possible places and takes the first one where it covers no other label. Pure
// functions.

const SIZE = 12; // pixels of a label's letters
const LETTER = 0.62; // the average width of a letter, as a share of its height

export class Labels {
  /** Take the edges of the chart's inside, in pixels. */
  constructor({ left, right, top, bottom }) {
    Object.assign(this, { left, right, top, bottom, taken: [] });
  }

  /** Reserve the box of a label at its place, which is {x, y, anchor} as in SVG, and return the place. */
  take(words, place, size = SIZE) {
    this.taken.push(roomOf(words, place, size));
    return place;
  }

  /**
   * Reserve and return the first place at which a label is inside the chart and covers no other; null if there is none.
   */
  place(words, places, size = SIZE) {
    const found = places.find((place) => this.#holds(roomOf(words, place, size)));
    return found ? this.take(words, found, size) : null;
  }

  /** Return whether there is room for all of these pairs [words, place]. */
  isFree(...names) {
    return names.every(([words, place]) => this.#holds(roomOf(words, place, SIZE)));
  }

  #holds({ left, right, top, bottom }) {
    const inside = left >= this.left && right <= this.right && top >= this.top && bottom <= this.bottom;
    return inside && this.taken.every((other) => left >= other.right || right <= other.left || top >= other.bottom || bottom <= other.top);
  }
}

/** Return the box of a label. words: one line, or several below each other. */
function roomOf(words, { x, y, anchor = "start" }, size) {
  const lines = [words].flat();
  const width = LETTER * size * Math.max(...lines.map((line) => line.length));
  const left = { start: x, middle: x - width / 2, end: x - width }[anchor];
  return { left, right: left + width, top: y - size, bottom: y + 0.3 * size + (lines.length - 1) * 1.35 * size };
}
