// Python's own functions, for the formulas that `python tools/python_to_js.py` translates. Pure functions.

/** The remainder that has the sign of the divisor, as `a % b`. */
export function modulo(a, b) {
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
}

/** The whole number below a quotient, as `a // b`. */
export function floorDivide(a, b) {
  return Math.round((a - modulo(a, b)) / b);
}

/** The greatest common divisor of two positive integers. */
export function gcd(a, b) {
  return b ? gcd(b, a % b) : a;
}

/** The length of the hypotenuse. Math.hypot is slower, because it allows numbers whose squares are infinite or zero. */
export function hypot(a, b) {
  return Math.sqrt(a * a + b * b);
}

/** The logarithm of the gamma function of a positive number, from Stirling's series. */
export function lgamma(x) {
  let [shifted, product] = [x, 1];
  while (shifted < 15) product *= shifted++;
  const inverse = 1 / (shifted * shifted);
  const series = (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse * (1 / 1680 - inverse / 1188)))) / shifted;
  return (shifted - 0.5) * Math.log(shifted) - shifted + 0.5 * Math.log(2 * Math.PI) + series - Math.log(product);
}

/** Whether an array has no items, or an object no properties. */
export function isEmpty(container) {
  for (const _ in container) return false;
  return true;
}

export function has(mapping, key) {
  return Object.prototype.hasOwnProperty.call(mapping, key);
}

/** The place after the items that are at most `value`, in an array in increasing order. */
export function bisectRight(items, value) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (value < items[middle]) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The text before the last separator, the separator, and the text after it. */
export function rpartition(text, separator) {
  const at = text.lastIndexOf(separator);
  return at < 0 ? ["", "", text] : [text.slice(0, at), separator, text.slice(at + separator.length)];
}

export function range(start, end, step = 1) {
  return Array.from({ length: Math.max(0, Math.ceil((end - start) / step)) }, (_, i) => start + i * step);
}

export function zip(first, ...others) {
  return first.map((item, i) => [item, ...others.map((other) => other[i])]);
}

export function minOf(items, otherwise) {
  return items.length ? Math.min(...items) : otherwise;
}

export function maxOf(items, otherwise) {
  return items.length ? Math.max(...items) : otherwise;
}

/** The first of the items whose key is smallest. */
export function minBy(items, key) {
  return items.reduce((least, item) => (key(item) < key(least) ? item : least));
}

/** The first of the items whose key is greatest. */
export function maxBy(items, key) {
  return items.reduce((most, item) => (key(item) > key(most) ? item : most));
}

/** Whether a text has letters only. */
export function isAlpha(text) {
  return /^\p{L}+$/u.test(text);
}

/** A number as an f-string writes it by a format such as `,.2f`, `.3e` or `.0%`. */
export function format(value, spec) {
  if (Number.isNaN(value)) return "nan";
  const [, commas, places, kind] = /^(,?)\.(\d+)([ef%])$/.exec(spec);
  if (kind === "e") return value.toExponential(places).replace(/(?<=e[+-])(\d)$/, "0$1");
  if (kind === "%") return `${fixed(100 * value, Number(places))}%`;
  return commas ? grouped(value, Number(places)) : fixed(value, Math.min(100, Number(places)));
}

/** A number with this number of decimals. Halves are rounded to the even digit, as in Python but not in toFixed. */
export function fixed(value, places) {
  const text = value.toFixed(places);
  const product = Math.abs(value) * 10 ** places;
  if (places <= 22 && product < 2 ** 52 && product % 1 !== 0.5) return text; // a product that is a half is exact
  const exact = Math.abs(value).toFixed(Math.min(100, places + 40));
  const dot = exact.indexOf(".");
  if (dot < 0 || !/^50*$/.test(exact.slice(dot + 1 + places))) return text;
  const whole = exact.slice(0, dot + 1 + places).replace(/\.$/, "");
  const even = "02468".includes(whole.slice(-1));
  if (!even) return text;
  return (value < 0 ? "-" : "") + whole;
}

/** The same with commas between thousands. */
export function grouped(value, places = 0) {
  const [whole, rest] = fixed(value, places).split(".");
  const commas = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return rest === undefined ? commas : `${commas}.${rest}`;
}

/** The items in the order of their keys, which are numbers. */
export function sortedBy(items, key) {
  return [...items].sort((a, b) => key(a) - key(b));
}
