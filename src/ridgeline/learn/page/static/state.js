// The page's state, and the address that contains it: `#v=1&tab=chat&chat.temperature=0.7`.
//
// Each tab declares its fields with the codecs below. An address has those that differ from their defaults. Addresses
// are typed by hand, come from strangers, and outlive versions of the page. `readState` skips the parts that no field
// accepts, and `unreadIn` names them, so that the page can report them.

export const VERSION = 1;

/**
 * Return a field with these functions. read returns undefined for an invalid text; takes says which values are valid.
 */
function codec(usual, read, write, takes) {
  return { usual, read, write, takes, formerly: [] };
}

/** Return the field with other names that an address may use: its earlier ones, or those of a command line. */
export function formerly(field, ...names) {
  return { ...field, formerly: names };
}

function range(what, least, most) {
  if (most === Infinity) return least === -Infinity ? what : `${what} from ${least}`;
  return least === -Infinity ? `${what} up to ${most}` : `${what} from ${least} to ${most}`;
}

/** Return a field for a text of at most `longest` characters. */
export function text(usual = "", longest = 4096) {
  return codec(usual, (said) => (said.length <= longest ? said : undefined), (value) => value, `at most ${longest} characters`);
}

/** Return a field for a number within bounds. `usual` may be null, for none. */
export function number(usual, least = -Infinity, most = Infinity) {
  const read = (said) => {
    const value = Number(said);
    return said.trim() !== "" && Number.isFinite(value) && value >= least && value <= most ? value : undefined;
  };
  return codec(usual, read, (value) => (Object.is(value, -0) ? "-0" : String(value)), range("a number", least, most));
}

/** Return a field for an integer within bounds. `usual` may be null, for none. */
export function whole(usual, least = Number.MIN_SAFE_INTEGER, most = Number.MAX_SAFE_INTEGER) {
  const any = number(usual, least, most);
  return codec(usual, (said) => [any.read(said)].find(Number.isSafeInteger), any.write, range("a whole number", least, most));
}

/** Return a field for yes or no. */
export function flag(usual = false) {
  return codec(usual, (said) => ({ 0: false, 1: true })[said], (value) => (value ? "1" : "0"), "0 or 1");
}

/** Return a field for one of these texts. */
export function oneOf(choices, usual = choices[0]) {
  return codec(usual, (said) => (choices.includes(said) ? said : undefined), (value) => value, choices.filter(Boolean).join(" or "));
}

/** An empty text in a list, so that a list of one empty text differs from an empty list. */
const EMPTY = "%";

function readPart(part, each) {
  const said = part === EMPTY ? "" : decode(part);
  return said === null ? undefined : each.read(said);
}

/** Return a field for a list of another field's values. */
export function list(each, usual = []) {
  const read = (said) => {
    const values = said === "" ? [] : said.split(",").map((part) => readPart(part, each));
    return values.includes(undefined) ? undefined : values;
  };
  const write = (values) => values.map((value) => encodeURIComponent(each.write(value)) || EMPTY).join(",");
  return codec(usual, read, write, `${each.takes}, with commas between`);
}

/** Return the state for an address without parameters. fields: those of each tab, by its id. */
export function usualState(fields) {
  const state = { tab: null };
  for (const [tab, own] of Object.entries(fields)) {
    state[tab] = Object.fromEntries(Object.entries(own).map(([name, field]) => [name, field.usual]));
  }
  return state;
}

/** Return the state in an address. `newer` is true if a later version of the page wrote it. */
export function readState(hash, fields) {
  const { state, newer } = read(hash, fields);
  return { state, newer };
}

/** Return the parts of an address that cannot be read, each with the reason: ["users=0 (it takes a whole number from 1 to 2048)"]. */
export function unreadIn(hash, fields) {
  return read(hash, fields).unread;
}

const SHOWN = 60; // maximum characters of a part in the message

function read(hash, fields) {
  const { said, unread } = parameters(hash);
  const leave = (name, value, why) => {
    const part = `${name}=${value}`;
    unread.push(`${part.length > SHOWN ? `${part.slice(0, SHOWN)}…` : part} (${why})`);
  };
  const state = usualState(fields);
  const version = Number(said.get("v") ?? 0);
  if (!Number.isInteger(version) || version < 0) leave("v", said.get("v"), `it takes a version, the newest of which is ${VERSION}`);
  const tab = said.get("tab") ?? [...said.keys()].find((name) => has(fields, name) && said.get(name) === "");
  if (has(fields, tab)) state.tab = tab;
  else if (tab !== undefined) leave("tab", tab, `it takes ${Object.keys(fields).join(" or ")}`);
  for (const [name, value] of said) {
    if (name === "v" || name === "tab" || (name === state.tab && value === "")) continue;
    const [owner, own] = place(name, state.tab, fields);
    const field = owner && fields[owner][own];
    const found = field && field.read(value);
    if (!field) leave(name, value, "there is no such setting");
    else if (found === undefined) leave(name, value, `it takes ${field.takes}`);
    else state[owner][own] = found;
  }
  return { state, newer: version > VERSION, unread };
}

/** Return the address of a state, which begins with #. */
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

/** Return the default of a field as an address writes it, or null if there is none. */
function write(field) {
  return field.usual === null ? null : field.write(field.usual);
}

/** Return the tab and the field that a name in an address means; [] if there is none. `chat.temperature` has both. People type
 * `temperature`, which is that of the open tab or of the first tab that has one. */
function place(name, tab, fields) {
  const dot = name.indexOf(".");
  const own = name.slice(dot + 1);
  const tabs = dot >= 0 ? [name.slice(0, dot)] : [tab, ...Object.keys(fields)];
  for (const owner of tabs.filter((each) => has(fields, each))) {
    if (has(fields[owner], own)) return [owner, own];
    const now = Object.keys(fields[owner]).find((each) => fields[owner][each].formerly.includes(own));
    if (now) return [owner, now];
  }
  return [];
}

/** Return the names and values of an address, and the parts that are none. If a name is there twice, the last counts. */
function parameters(hash) {
  const [said, unread] = [new Map(), []];
  for (const pair of hash.replace(/^#/, "").split("&").filter(Boolean)) {
    const [name, ...value] = pair.split("=").map((part) => decode(part));
    if (name === null || value.includes(null)) unread.push(`${pair.slice(0, SHOWN)} (a % in it is followed by no code)`);
    else {
      const before = said.get(name);
      if (before !== undefined && before !== value.join("=")) unread.push(`${name}=${before} (${name} is there again)`.slice(0, 2 * SHOWN));
      said.set(name, value.join("="));
    }
  }
  return { said, unread };
}

/** Return null for an invalid encoding. */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}
