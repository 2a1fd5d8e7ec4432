// The text and its tokens: chips with ids, control tokens outlined, and the model's continuation. One token of the
// prompt is selected, and the darkness of each chip shows that token's attention to it.

import { html, useState } from "page/dom.js";
import { shown } from "page/chart_candidates.js";
import { layerAndHead } from "page/token_inside.js";
import { rowsOf } from "page/token_recording.js";

export function TokenText({ recording, position, state, onPosition }) {
  const [hovered, setHovered] = useState(-1);
  const { row } = layerAndHead(recording, position, state);
  const can = (at) => rowsOf(recording.attention, at) !== null;
  const tokens = [...recording.prompt, ...recording.written];
  const first = recording.prompt.length;
  const over = (at) => ({
    onMouseEnter: () => setHovered(at),
    onMouseLeave: () => setHovered(-1),
    onFocus: () => setHovered(at),
    onBlur: () => setHovered(-1),
  });
  const marked = (at, name) => [name, at === hovered && "over", at >= first && "new"].filter(Boolean).join(" ");
  return html`<section class="tokens" aria-label="Text and tokens">
    <p class="words">${tokens.map((token, at) => !token.special && html`<span key=${at} class=${marked(at, "part")} ...${over(at)}>${token.piece}</span>`)}</p>
    <ol class="chips">
      ${tokens.map((token, at) => {
        const own = { class: marked(at, token.special ? "chip special" : "chip"), ...over(at) };
        const inner = html`<code>${shown(token.piece)}</code><small>${token.id}</small>`;
        const name = `token ${at}: ${token.piece}, id ${token.id}${token.special ? ", a control token" : ""}`;
        if (at >= first || !can(at)) return html`<li key=${at}><span ...${own} title=${name}>${inner}</span></li>`;
        const share = row?.[at] ?? 0;
        return html`<li key=${at}>
          <button type="button" ...${own} style=${{ "--share": share }} aria-pressed=${at === position ? "true" : "false"} aria-label=${name} title=${name} onClick=${() => onPosition(at)}>
            ${inner}
          </button>
        </li>`;
      })}
    </ol>
    <p class="hint">${recording.prompt.length} tokens in, ${recording.written.length} generated (underlined). Control tokens are dashed. Darker: the chosen token attends to it more.</p>
  </section>`;
}
