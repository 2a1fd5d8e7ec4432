// Statements of textbooks next to the figures of the cost model for the same case, in groups that unfold. A click sets
// the page to a case.

import { html, useEffect, useMemo, useRef, useState } from "page/dom.js";
import { nameOf } from "page/calc_data.js";
import { figuresOf, GROUPS, sourceOf, statesOf } from "page/statements.js";

/** known(name of a table, model): whether the page has such a table. */
export function Folklore({ all, tableOf, known, onChange }) {
  const [box, seen] = useSeen();
  const count = GROUPS.reduce((sum, { statements }) => sum + statements.length, 0);
  return html`<section class="folklore" ref=${box} aria-labelledby="folklore-title">
    <h2 id="folklore-title">Textbooks and the cost model</h2>
    <p class="dim lead">${count} statements of textbooks, compared with what the cost model computes.</p>
    ${GROUPS.map((group, at) => html`<${Group} key=${group.title} ...${{ group, all, tableOf, known, onChange }} first=${at === 0} seen=${seen} />`)}
  </section>`;
}

/** Show a group. Its figures are not computed before it is unfolded and visible. */
function Group({ group, first, seen, ...more }) {
  const [open, unfold] = useState(first);
  return html`<details class="group" open=${open} onToggle=${(event) => unfold(event.target.open)}>
    <summary><h3>${group.title}</h3> <span class="dim">${group.statements.length}</span></summary>
    ${open && html`<ul>${group.statements.map((statement) => html`<${Statement} key=${statement.id} ...${{ statement, seen, ...more }} />`)}</ul>`}
  </details>`;
}

function Statement({ statement, seen, all, tableOf, known, onChange }) {
  const { text, why, state } = statement;
  const states = statesOf(statement);
  const lacking = states.find((each) => !known(nameOf(each), each.model));
  const tables = seen && !lacking ? states.map(tableOf) : [];
  const ready = seen && !lacking && tables.every(Boolean);
  const said = useMemo(() => ready && saidOf(statement, tables, all), [ready]);
  return html`<li>
    <blockquote>${text}</blockquote>
    <p class="ledger">${lacking ? `This file does not contain ${lacking.model}.` : said || "…"}</p>
    <p class="dim">${why}</p>
    <p class="from dim">
      ${state && !lacking && html`<button type="button" class="quiet" onClick=${() => onChange(state)}>Set the page to this case<span class="unseen">: ${text}</span></button>`}
      <span>${sourceOf(statement)}</span>
    </p>
  </li>`;
}

function saidOf(statement, tables, all) {
  const broken = tables.find((table) => table.error);
  return broken ? broken.error : statement.ledger(figuresOf(statement, tables, all));
}

/** Return whether an element has been visible. Elements further down request nothing before that. */
function useSeen() {
  const box = useRef(null);
  const [seen, see] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((found) => found.some((each) => each.isIntersecting) && see(true));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return [box, seen];
}
