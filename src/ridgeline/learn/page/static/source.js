// Where the page's data comes from: a server's routes, or blocks in the file that the page is. Tabs ask only a Source.
//
// Data that both have is asked for by name, `await source.data("cards.json")`; what only a server can do by its
// address, relative to the page, `await source.post("v1/completions", body)`. Errors are RequestErrors, whose message
// is one line.

const KEY = "ridgeline.key";
const BLOCKS = 'script[type="application/json"][data-name], script[type="application/gzip"][data-name]';

/** What a model's table is called. stored: weights and kv by format, null as its config says; devices; attention: whether
 * each card has requests of its own. learn/page/data.py calls it so too. */
export function tableName(model, { weights = null, kv = null, devices = 1, attention = false } = {}) {
  const said = { weights, kv, devices: devices === 1 ? null : devices, attention: attention ? 1 : null };
  const query = Object.entries(said).filter(([, value]) => value !== null);
  const parts = query.map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return `tables/${encodeURIComponent(model)}.json` + (parts.length ? `?${parts.join("&")}` : "");
}

/** A request that was not answered as it was meant. status: 0 where no answer came; code: the server's, or "". */
export class RequestError extends Error {
  constructor(message, status = 0, code = "") {
    super(message.replace(/\s+/g, " ").trim());
    this.status = status;
    this.code = code;
  }
}

/** What a page was opened from. */
export function openSource() {
  return location.protocol === "file:" || document.querySelector(BLOCKS) ? new FileSource() : new ServerSource();
}

/** A page that is one file: its blocks, and nobody to ask. */
class FileSource {
  served = false;

  constructor() {
    this.blocks = new Map([...document.querySelectorAll(BLOCKS)].map((block) => [block.dataset.name, block]));
  }

  /** Names of the data that there is. */
  names() {
    return [...this.blocks.keys()];
  }

  /** Data by its name, unpacked each time that it is asked for. */
  async data(name) {
    const block = this.blocks.get(name);
    if (!block) throw new RequestError(`this file has no ${name}; export the page again with this data`);
    if (block.type === "application/json") return JSON.parse(block.textContent);
    const packed = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
    const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(text).json();
  }
}

/** A server, which may want a key. It is kept while the browser's tab is open, and goes nowhere else. */
class ServerSource {
  served = true;
  #key = kept();

  get hasKey() {
    return this.#key !== "";
  }

  /** Use this key from now on; "" for none. */
  setKey(key) {
    this.#key = key;
    keep(key);
  }

  /** Data by its name. */
  data(name, options) {
    return this.get(`page/${name}`, options);
  }

  /** JSON from an address. options: as fetch has them (`signal`). */
  async get(address, options = {}) {
    return json(await this.#fetch(address, options));
  }

  /** The answer to a body in JSON. */
  async post(address, body, options = {}) {
    return json(await this.#fetch(address, { ...posted(body), ...options }));
  }

  /** What an address has, as it is. */
  async blob(address) {
    return (await this.#fetch(address, {})).blob();
  }

  /** Have what an address has removed. */
  async remove(address) {
    await this.#fetch(address, { method: "DELETE" });
  }

  /** The table of the model that the text of a config.json describes. name: of the table (tableName), which says how it is
   * stored. */
  async price(config, name) {
    const query = name.includes("?") ? name.slice(name.indexOf("?")) : "";
    return json(await this.#fetch(`page/tables${query}`, { ...posted(null), body: config }));
  }

  /** The objects that a server sends as events, one after the other, each as soon as it is there. body: of a POST; a
   * GET without one. An error among them is thrown. */
  async *events(address, body, options = {}) {
    const response = await this.#fetch(address, { ...(body === undefined ? {} : posted(body)), ...options });
    try {
      for await (const said of frames(response.body)) {
        if (said === "[DONE]") return;
        const event = JSON.parse(said);
        if (event.error) throw new RequestError(event.error.message ?? "the stream ended unexpectedly", 200, event.error.code);
        yield event;
      }
    } catch (error) {
      throw asRequestError(error);
    }
  }

  async #fetch(address, options) {
    const headers = { ...options.headers, ...(this.#key ? { authorization: `Bearer ${this.#key}` } : {}) };
    let response;
    try {
      response = await fetch(address, { ...options, headers, credentials: "omit", redirect: "error" });
    } catch (error) {
      throw asRequestError(error);
    }
    if (!response.ok) throw await refused(response);
    return response;
  }
}

function posted(body) {
  return { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
}

async function json(response) {
  try {
    return await response.json();
  } catch (error) {
    throw asRequestError(error);
  }
}

/** A server's own words, where it has some. */
async function refused(response) {
  const said = await response.json().catch(() => null);
  const message = said?.error?.message ?? `the server responded with status ${response.status}`;
  return new RequestError(String(message), response.status, said?.error?.code ?? "");
}

/** An abort stays what it is: whoever asked for it knows. */
function asRequestError(error) {
  if (error instanceof RequestError || error.name === "AbortError") return error;
  if (error instanceof SyntaxError) return new RequestError("the server's response cannot be read");
  return new RequestError("the server cannot be reached or has closed the connection");
}

/** The data of server-sent events; comments and other fields are passed over. */
async function* frames(body) {
  let rest = "";
  for await (const text of pieces(body.pipeThrough(new TextDecoderStream()))) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

/** Not every browser has streams that are iterable by themselves. */
async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
  } finally {
    await reader.cancel().catch(() => {});
  }
}

// A browser may refuse storage; the key is then typed again after a reload.

function kept() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

function keep(key) {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Nothing to do: it stays in memory.
  }
}
