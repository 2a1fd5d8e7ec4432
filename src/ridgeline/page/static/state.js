// The page's state and the address that says it: `#v=1&tab=chat&chat.temperature=0.7`.
//
// Each tab states its fields, which are values of the codecs below; an address has those that are not as usual. What an
// address says and no field would, is passed over: addresses are typed by hand, and come from strangers.

export const VERSION = 1;

/** A field with these texts: read gives undefined for a text that is no value of it. */
function codec(usual, read, write) {
  return { usual, read, write };
}

/** A text of at most so many characters. */
export function text(usual = "", longest = 4096) {
  return codec(usual, (said) => (said.length <= longest ? said : undefined), (value) => value);
}

/** A number between two bounds; `usual` may be null, for none. */
export function number(usual, least = -Infinity, most = Infinity) {
  const read = (said) => {
    const value = Number(said);
    return said.trim() !== "" && Number.isFinite(value) && value >= least && value <= most ? value : undefined;
  };
  return codec(usual, read, (value) => (Object.is(value, -0) ? "-0" : String(value)));
}

/** A whole number between two bounds; `usual` may be null, for none. */
export function whole(usual, least = Number.MIN_SAFE_INTEGER, most = Number.MAX_SAFE_INTEGER) {
  const any = number(usual, least, most);
  return codec(usual, (said) => [any.read(said)].find(Number.isSafeInteger), any.write);
}

/** Yes or no. */
export function flag(usual = false) {
  return codec(usual, (said) => ({ 0: false, 1: true })[said], (value) => (value ? "1" : "0"));
}

/** One of these texts. */
export function oneOf(choices, usual = choices[0]) {
  return codec(usual, (said) => (choices.includes(said) ? said : undefined), (value) => value);
}

/** An empty text in a list: a list of one of them is no empty list. */
const EMPTY = "%";

function readPart(part, each) {
  const said = part === EMPTY ? "" : decode(part);
  return said === null ? undefined : each.read(said);
}

/** Values of another field, in order. */
export function list(each, usual = []) {
  const read = (said) => {
    const values = said === "" ? [] : said.split(",").map((part) => readPart(part, each));
    return values.includes(undefined) ? undefined : values;
  };
  const write = (values) => values.map((value) => encodeURIComponent(each.write(value)) || EMPTY).join(",");
  return codec(usual, read, write);
}

/** What a page shows to who comes without an address. fields: of each tab, by its id. */
export function usualState(fields) {
  const state = { tab: null };
  for (const [tab, own] of Object.entries(fields)) {
    state[tab] = Object.fromEntries(Object.entries(own).map(([name, field]) => [name, field.usual]));
  }
  return state;
}

/** The state that an address says. `newer` is true where a page of a later version wrote it. */
export function readState(hash, fields) {
  const said = parameters(hash);
  const version = Number(said.get("v") ?? 0);
  const state = usualState(fields);
  const tab = said.get("tab") ?? [...said.keys()].find((name) => has(fields, name) && said.get(name) === "");
  if (has(fields, tab)) state.tab = tab;
  for (const [name, value] of said) {
    const [owner, own] = version === 0 ? ownerBefore1(name, state.tab, fields) : split(name);
    const read = has(fields, owner) && has(fields[owner], own) ? fields[owner][own].read(value) : undefined;
    if (read !== undefined) state[owner][own] = read;
  }
  return { state, newer: version > VERSION };
}

/** The address of a state, which begins with #. */
export function writeState(state, fields) {
  const said = [["v", String(VERSION)]];
  if (state.tab) said.push(["tab", state.tab]);
  for (const [tab, own] of Object.entries(fields)) {
    for (const [name, field] of Object.entries(own)) {
      const value = state[tab][name];
      if (value !== null && field.write(value) !== write(field)) said.push([`${tab}.${name}`, field.write(value)]);
    }
  }
  return "#" + said.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`).join("&");
}

function has(object, name) {
  return Object.prototype.hasOwnProperty.call(object, name);
}

/** The usual value of a field as an address would say it; null where there is none. */
function write(field) {
  return field.usual === null ? null : field.write(field.usual);
}

/** Version 0 is what people type: `#chat`, `#tab=chat&temperature=1`. Names are those of the tab, or of the first. */
function ownerBefore1(name, tab, fields) {
  return name.includes(".") ? split(name) : [tab ?? Object.keys(fields)[0] ?? "", name];
}

function split(name) {
  const dot = name.indexOf(".");
  return dot < 0 ? ["", name] : [name.slice(0, dot), name.slice(dot + 1)];
}

/** The names and values of an address; of a name that is there twice the last. */
function parameters(hash) {
  const pairs = hash.replace(/^#/, "").split("&").filter(Boolean);
  return new Map(
    pairs.flatMap((pair) => {
      const [name, ...value] = pair.split("=").map((part) => decode(part));
      return name === null || value.includes(null) ? [] : [[name, value.join("=")]];
    }),
  );
}

/** null for what is no encoding of a text. */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}
