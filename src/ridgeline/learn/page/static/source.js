// The source of the page's data: a server's routes, or blocks in the file that is the page. Tabs only use a Source.
// Data that both have is read by name, `await source.data("cards.json")`. What only a server can do is requested by its
// address, relative to the page: `await source.post("v1/completions", body)`. Errors are RequestErrors, whose message
// is one line.

const KEY = "ridgeline.key";
const BLOCKS = 'script[type="application/json"][data-name], script[type="application/gzip"][data-name]';

/**
 * Return the name of a model's table. stored: the formats of weights and KV, null for those of the config; devices;
 * attention: whether each card has requests of its own. learn/page/data.py uses the same names.
 */
export function tableName(model, { weights = null, kv = null, devices = 1, attention = false } = {}) {
  const said = { weights, kv, devices: devices === 1 ? null : devices, attention: attention ? 1 : null };
  const query = Object.entries(said).filter(([, value]) => value !== null);
  const parts = query.map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return `tables/${encodeURIComponent(model)}.json` + (parts.length ? `?${parts.join("&")}` : "");
}

/** An error of a request. status: 0 if no response came. code: the server's error code, or "". */
export class RequestError extends Error {
  constructor(message, status = 0, code = "") {
    super(message.replace(/\s+/g, " ").trim());
    this.status = status;
    this.code = code;
  }
}

/** Return the source from which the page was opened. */
export function openSource() {
  return location.protocol === "file:" || document.querySelector(BLOCKS) ? new FileSource() : new ServerSource();
}

/** A page that is one file with its data and has no server. */
class FileSource {
  served = false;

  constructor() {
    this.blocks = new Map([...document.querySelectorAll(BLOCKS)].map((block) => [block.dataset.name, block]));
  }

  /** Return the names of the available data. */
  names() {
    return [...this.blocks.keys()];
  }

  /** Return data by its name. It is unpacked at each call. */
  async data(name) {
    const block = this.blocks.get(name);
    if (!block) throw new RequestError(`this file has no ${name}; export the page again with this data`);
    if (block.type === "application/json") return JSON.parse(block.textContent);
    const packed = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
    const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(text).json();
  }
}

/** A server, which may require a key. The key is kept while the browser's tab is open, and sent to no other server. */
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

  /** Return data by its name. */
  data(name, options) {
    return this.get(`page/${name}`, options);
  }

  /** Return JSON from an address. options: those of fetch (`signal`). */
  async get(address, options = {}) {
    return json(await this.#fetch(address, options));
  }

  /** Send a JSON body and return the response. */
  async post(address, body, options = {}) {
    return json(await this.#fetch(address, { ...posted(body), ...options }));
  }

  /** Return the contents of an address as a blob. */
  async blob(address) {
    return (await this.#fetch(address, {})).blob();
  }

  /** Send a DELETE request. */
  async remove(address) {
    await this.#fetch(address, { method: "DELETE" });
  }

  /**
   * Return the table of the model that the text of a config.json describes. name: that of the table (tableName), which
   * says how the model is stored.
   */
  async price(config, name) {
    const query = name.includes("?") ? name.slice(name.indexOf("?")) : "";
    return json(await this.#fetch(`page/tables${query}`, { ...posted(null), body: config }));
  }

  /**
   * Yield the objects that a server sends as events, each as soon as it arrives. body: that of a POST; without one it
   * is a GET. An error event is thrown.
   */
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

/** Return an error with the server's own message, if it has one. */
async function refused(response) {
  const said = await response.json().catch(() => null);
  const message = said?.error?.message ?? `the server responded with status ${response.status}`;
  return new RequestError(String(message), response.status, said?.error?.code ?? "");
}

/** Return a RequestError. An abort is returned unchanged, because the caller caused it. */
function asRequestError(error) {
  if (error instanceof RequestError || error.name === "AbortError") return error;
  if (error instanceof SyntaxError) return new RequestError("the server's response cannot be read");
  return new RequestError("the server cannot be reached or has closed the connection");
}

/** Yield the data of server-sent events; comments and other fields are skipped. */
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

/** Yield the chunks of a stream. Not every browser has streams that are iterable themselves. */
async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
  } finally {
    await reader.cancel().catch(() => {});
  }
}

// A browser may refuse storage. The key is then typed again after a reload.

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
    // Nothing to do: the key stays in memory.
  }
}
