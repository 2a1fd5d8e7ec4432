// Numbers as people read them. The same strings as util/document/humanize.py, which says why; a test holds them together.

const SMALL = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]];
const LARGE = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

const TIE = /^50*$/;

/** A number with so many decimals; halves go to the even digit, as Python has it and toFixed has not. */
export function fixed(value, places) {
  const text = value.toFixed(places);
  if (places <= 22 && (Math.abs(value) * 10 ** places) % 1 !== 0.5) return text; // a product that is a half is exact
  const exact = Math.abs(value).toFixed(Math.min(100, places + 40));
  const dot = exact.indexOf(".");
  if (dot < 0 || !TIE.test(exact.slice(dot + 1 + places))) return text;
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

/** `value` with `count` digits that mean something: 0.50, 1.2, 12, 123 for two. */
export function digits(value, count) {
  if (value === 0) return "0";
  const exponent = Number(value.toExponential(count - 1).split("e")[1]);
  return fixed(value, Math.min(100, Math.max(0, count - 1 - exponent)));
}

/** A number without a prefix: `3,950`, `133`, `48.1`, `7.50`; two digits where it is small: `0.50`. */
export function three(value) {
  if (Math.abs(value) >= 999.5) return grouped(value);
  return digits(value, Math.abs(value) >= 0.9995 ? 3 : 2);
}

function prefixed(value, count, table, least) {
  const [scale, prefix] = table.find(([each]) => Math.abs(value) >= each * 0.9995) ?? least;
  return digits(value / scale, count) + prefix;
}

/** A count with a prefix: `1.2M`, `340k`, `0`. */
export function scaled(value, count = 2) {
  return prefixed(value, count, LARGE, [1, ""]);
}

/** Seconds with a prefix and without the s: `1.2µ`, `340m`, `2.0`. */
export function seconds(value, count = 2) {
  return value === 0 ? "0" : prefixed(value, count, SMALL, SMALL[SMALL.length - 1]);
}

/** Seconds in a sentence: `1.23 ms`. */
export function saySeconds(value) {
  return value >= 999.5 ? `${grouped(value)} s` : spaced(seconds(value, 3), "s");
}

/** A count in a sentence: `1.23 GFLOP`, `450 kB`. */
export function say(value, unit) {
  return spaced(scaled(value, 3), unit);
}

function spaced(text, unit) {
  const last = text.slice(-1);
  return /[a-zA-Zµ]/.test(last) ? `${text.slice(0, -1)} ${last}${unit}` : `${text} ${unit}`;
}

/** A share: `71%`, `3.2%`, `0.04%`. */
export function percent(share) {
  if (share >= 0.095 || share === 0) return `${fixed(100 * share, 0)}%`;
  return `${digits(100 * share, share < 0.01 ? 1 : 2)}%`;
}

/** Bytes as drivers show them: `13.27 GiB`, below one `4.62 MiB`, `64.0 KiB` or `12 B`. */
export function sayGiB(bytes) {
  const units = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  const [size, unit] = units.find(([size]) => Math.abs(bytes) >= size * 0.9995) ?? [1, "B"];
  if (unit === "B") return `${fixed(bytes, 0)} B`;
  return unit === "GiB" ? `${grouped(bytes / size, 2)} GiB` : `${three(bytes / size)} ${unit}`;
}

/** Bytes as data sheets and files count them: `15.01 GB`, below one `134 MB`. */
export function sayGB(bytes) {
  const amount = bytes / 1e9;
  return amount >= 1 ? `${grouped(amount, 2)} GB` : say(amount * 1e9, "B");
}
