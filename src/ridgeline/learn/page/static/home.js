// The page's home, which opens for an address without a tab: a description, and things to try.

import { html } from "page/dom.js";

const MOST = 3;

/** Return the first examples that the tabs have here, each with its tab. */
export function examplesOf(tabs, context) {
  const found = tabs.map((tab) => ({ tab: tab.id, ...tab.example?.(context) }));
  return found.filter((each) => each.says).slice(0, MOST);
}

/** Show a sentence and a button for each example. onTry is called with the chosen example. */
export function Home({ tabs, context, onTry }) {
  const where = context.served ? "on this server while it runs" : "in recorded runs";
  return html`<section class="home" aria-label="What this is">
    <p>
      <strong>Ridgeline runs language models, and predicts, measures and explains their speed:</strong> on hardware that you
      might buy, and ${where}.
    </p>
    <div class="tries" role="group" aria-label="Things to try">
      ${examplesOf(tabs, context).map(
        (each) => html`<button type="button" key=${each.tab} onClick=${() => onTry(each)}>
          <span class="says">${each.says}</span> <span class="shows">${each.shows}</span>
        </button>`,
      )}
    </div>
  </section>`;
}
