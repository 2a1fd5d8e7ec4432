// Parts that charts share: their width, and their tables.

import { html, useLayoutEffect, useRef, useState } from "page/dom.js";

/** Return a reference for an element, and the element's width in pixels. */
export function useWidth(usual) {
  const box = useRef(null);
  const [width, setWidth] = useState(usual);
  useLayoutEffect(() => {
    const measure = () => setWidth(Math.max(240, Math.floor(box.current.clientWidth) || usual));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return [box, width];
}

/** Show a chart's figures, folded. head: names of columns. rows: texts, each row beginning with its name. */
export function ChartTable({ name, head, rows }) {
  return html`<details class="as-table">
    <summary>${name}</summary>
    <div class="scroll" tabindex="0" role="region" aria-label=${name}>
      <table>
        <thead><tr>${head.map((each, at) => html`<th scope="col" class=${at ? "" : "words"}>${each}</th>`)}</tr></thead>
        <tbody>
          ${rows.map(([first, ...rest]) => html`<tr><th scope="row" class="words">${first}</th>${rest.map((each) => html`<td>${each}</td>`)}</tr>`)}
        </tbody>
      </table>
    </div>
  </details>`;
}
