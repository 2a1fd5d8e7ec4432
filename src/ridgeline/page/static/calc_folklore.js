// What texts say beside what the ledger says of the same case, and why they differ. A click sets the page to it.

import { html, useEffect, useRef, useState } from "page/dom.js";
import { settingOf } from "page/calc_case.js";
import { nameOf } from "page/calc_data.js";
import { computeBoundPrompt } from "page/critical.js";
import { fixed, grouped, percent, sayGB, sayGiB, saySeconds, three } from "page/numbers.js";

const PLAIN = { cards: 1, weights: "", kv: "", input: 1500, output: 1000, users: 1, ttft: 1, tpot: 0.05, use: 0.9 };
const SMALL = { ...PLAIN, model: "llama-3-8b", card: "a100-sxm-80gb" };
const LARGE = { ...PLAIN, model: "llama-3-70b", card: "h100-sxm", input: 1, output: 1 };

/** text: what is said; ledger(setting): what is so; why; state: the case. */
export const ROWS = [
  {
    text: "A batch of about 150 fills an A100.",
    ledger: ({ wall, decode }) => `At 2,000 tokens no batch gets past ${three(wall)} FLOP a byte; the ridge is at ${three(decode.ridge)}.`,
    why: "Weights are shared by a batch, keys and values are not: each user brings bytes that nobody else needs.",
    state: { ...SMALL, users: 150 },
  },
  {
    text: "24 GB hold 8B in bf16 and about 30 users of 2,000 tokens: 8 GB over 256 MB.",
    ledger: ({ serving }) => `${grouped(serving.memory.users)} users: ${sayGiB(serving.memory.left)} are left, ${sayGiB(serving.memory.requestBytes)} each.`,
    why: "Activations, the driver and its graphs, and a reserve that no engine fills live there too.",
    state: { ...SMALL, card: "rtx-4090", input: 1999, output: 1 },
  },
  {
    text: "8B on an A100: 16 GB a token, 8 ms, 125 tokens a second.",
    ledger: ({ decode }) => `${sayGB(decode.cost.weights)}, ${saySeconds(decode.seconds.floor)}, ${three(1 / decode.seconds.floor)} tokens a second at best.`,
    why: "Of the embedding's table a token reads one row, not all of it.",
    state: { ...SMALL, input: 1, output: 1 },
  },
  {
    text: "Batching 32 users gives 32 times the throughput.",
    ledger: ({ alone, decode }) => `${fixed((32 * alone.seconds.bound) / decode.seconds.bound, 1)} times, at 2,000 tokens of context.`,
    why: "The step becomes longer by 32 users' keys and values.",
    state: { ...SMALL, users: 32 },
  },
  {
    text: "Prefill is compute-bound.",
    ledger: ({ asked }) => `From ${grouped(computeBoundPrompt(asked))} prompt tokens on; a prompt of eight waits for memory.`,
    why: "Short prompts read all weights for a handful of tokens, as decoding does.",
    state: { ...SMALL, card: "h100-sxm", input: 8, output: 30 },
  },
  {
    text: "2,000 tokens of Llama-3-8B take 256 MB of keys and values.",
    ledger: ({ table }) => `${sayGB(2000 * table.memory.token)}: ${grouped(table.memory.token)} bytes a token.`,
    why: "256 MB are MiB that lost their i: 250 MiB.",
    state: { ...SMALL, input: 1999, output: 1 },
  },
  {
    text: "70B in FP16 takes 42 ms a token on one H100; arithmetic is less than half a percent of it.",
    ledger: ({ decode, serving }) => `${saySeconds(decode.seconds.floor)} and ${percent(decode.arithmetic / decode.memory)}, if it fitted: ${sayGiB(serving.memory.missing)} are missing.`,
    why: "140 GB do not go into 80: two cards, or narrower weights.",
    state: LARGE,
  },
  {
    text: "Llama-3.1-405B, from its config: 405.8 billion parameters, about 810 GB.",
    ledger: ({ table }) => `${grouped(table.parameters.total)} parameters, ${sayGB(table.parameters.bytes)}.`,
    why: "The sum is right; the text's walk through a single layer is off by ten.",
    state: { ...LARGE, model: "llama-3.1-405b" },
  },
  {
    text: "A mixture of experts with 22 of 235 billion parameters active is as light as a model of 22.",
    ledger: ({ table, alone, decode }) => `A step of one reads ${sayGB(alone.cost.weights)}, of 32 users ${sayGB(decode.cost.weights)}; memory holds all ${sayGB(table.parameters.bytes)}.`,
    why: "Each user hits other experts: arithmetic is saved, memory is not, and bytes hardly.",
    state: { ...LARGE, model: "qwen3-235b-a22b", users: 32 },
  },
];

export function Folklore({ all, tableOf, known, onChange }) {
  const [box, seen] = useSeen();
  const rows = ROWS.filter((row) => known(nameOf(row.state), row.state.model) && all.cards[row.state.card]);
  if (!rows.length) return null;
  return html`<section class="folklore" ref=${box} aria-labelledby="folklore-title">
    <h2 id="folklore-title">Text and ledger</h2>
    <p class="lead">What is said everywhere, and what it comes to byte by byte.</p>
    <ul>
      ${rows.map((row) => html`<li class="card" key=${row.text}>
        <blockquote>${row.text}</blockquote>
        <p class="ledger">${seen ? ledgerOf(row, all, tableOf) : "…"}</p>
        <p class="dim">${row.why}</p>
        <button type="button" class="quiet" onClick=${() => onChange(row.state)}>Set the page to it<span class="unseen">: ${row.text}</span></button>
      </li>`)}
    </ul>
  </section>`;
}

function ledgerOf(row, all, tableOf) {
  const table = tableOf(row.state);
  if (!table) return "…";
  return table.error ?? row.ledger(settingOf(table, all, row.state));
}

/** Whether an element was in sight: what is far down asks for nothing before. */
function useSeen() {
  const box = useRef(null);
  const [seen, see] = useState(false);
  useEffect(() => {
    if (!box.current) return undefined;
    const observer = new IntersectionObserver((found) => found.some((each) => each.isIntersecting) && see(true));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return [box, seen];
}
