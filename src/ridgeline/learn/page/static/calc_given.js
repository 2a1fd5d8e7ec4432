// A config.json that is dropped on the page or chosen by a button. The server prices the model, and the page can then
// show it. The file's contents are untrusted and remain text. A file that is no config is refused in one line.

import { html, useEffect, useRef, useState } from "page/dom.js";
import { modelName } from "page/calc_case.js";
import { GIVEN } from "page/calc_data.js";
import { Trouble } from "page/controls.js";
import { onFiles } from "page/dropped.js";

const MOST = 1 << 20; // bytes; the server's limit is the same
const EXPORT = "This page is a file and contains the models that it was exported with. To export it with yours: ridgeline page export --out page.html --models PATH/config.json";

/** onGiven(name, text): called with a file that is JSON. */
export function Given({ source, active, model, onGiven }) {
  const input = useRef(null);
  const [over, setOver] = useState(false);
  const [trouble, say] = useState("");
  useEffect(() => say(""), [model]); // the message belongs to a file, not to a model that was chosen since
  const take = async (file) => {
    const found = source.served ? await readConfig(file) : { trouble: EXPORT };
    say(found.trouble ?? "");
    if (found.config) onGiven(GIVEN + found.name, found.config);
  };
  const latest = useRef(take);
  latest.current = take;
  useEffect(() => (active ? onFiles(setOver, ([file]) => latest.current(file)) : undefined), [active]);
  return html`<button type="button" class="quiet give" onClick=${() => (source.served ? input.current.click() : say(EXPORT))}>Open a config.json</button>
    <input type="file" accept=".json,application/json" hidden ref=${input} aria-label="A config.json"
      onChange=${(event) => {
        const [file] = event.target.files;
        event.target.value = "";
        if (file) take(file);
      }} />
    ${over && html`<p class="dropping" aria-hidden="true"><span>Drop a config.json to use its model</span></p>`}
    ${trouble && html`<${Trouble}>${trouble}<//>`}`;
}

async function readConfig(file) {
  const called = file.name.slice(0, 80);
  if (file.size > MOST) return { trouble: `${called} has more than ${MOST} bytes, more than a config.json` };
  try {
    const config = await file.text();
    return { config, name: modelName(called, JSON.parse(config)) };
  } catch (error) {
    return { trouble: error instanceof SyntaxError ? `${called} is not valid JSON` : `${called} cannot be read` };
  }
}
