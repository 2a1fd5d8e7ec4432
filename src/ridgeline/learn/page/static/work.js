// Work: what one step asks of a model, as sums, as core/ops/work.py has it. Pure.
//
//   segment(queries, keys, encoded, encodes, inputs)  a part of one sequence: its last `queries` of `keys` positions;
//                                  encoded: positions of an encoder that it looks at; encodes: whether the step runs them
//   workOf(table, segments, logitRows)          Work of a step that runs these; by default a row of logits for each
//   decodeWork(table, users, context, encoded)  Work of a step that gives each user a token; context: with the new position
//
// A work is {rows: {space: n}, sequences, attention: [a {one, few, many} for each of table.reaches]}; a class of query
// length is null or [sequences, queries, pairs, keys, written].

const FEW = 8; // most queries of a sequence that count as a few

export function segment(queries, keys, encoded = 0, encodes = false, inputs = 1) {
  return { queries, keys, encoded, encodes, inputs };
}

export function workOf(table, segments, logitRows = segments.length) {
  const rows = { tokens: 0, logits: logitRows };
  for (const each of segments) {
    rows.tokens += each.queries;
    if (each.encodes && each.encoded) rows.encoder = (rows.encoder || 0) + each.encoded;
  }
  return { rows, sequences: segments.length, attention: table.reaches.map((reach) => attentionOf(reach, segments)) };
}

export function decodeWork(table, users, context, encoded = 0) {
  const one = workOf(table, [segment(1, context, encoded)]);
  const many = (sums) => sums && sums.map((sum) => sum * users);
  const attention = one.attention.map((each) => ({ one: many(each.one), few: many(each.few), many: many(each.many) }));
  return { rows: { tokens: users, logits: users }, sequences: users, attention };
}

function attentionOf(reach, segments) {
  const work = { one: null, few: null, many: null };
  for (const each of segments) {
    const sums = sumsOf(reach, each);
    if (!sums[1] && !sums[4]) continue;
    const name = sums[1] <= 1 ? "one" : sums[1] <= FEW ? "few" : "many";
    work[name] = work[name] ? work[name].map((sum, i) => sum + sums[i]) : sums;
  }
  return work;
}

function sumsOf(reach, { queries, keys, encoded, encodes, inputs }) {
  if (reach.space === "encoder") {
    const rows = encodes ? encoded : 0;
    return [rows ? inputs : 0, rows, Math.floor((rows * rows) / inputs), rows, rows];
  }
  if (reach.kind === "cross") return [1, queries, queries * encoded, encoded, encodes ? encoded : 0];
  const start = keys - queries;
  const written = reach.kind === "recurrent" ? 1 : queries;
  return [1, queries, pairsOf(reach, start, keys), keysOf(reach, start, keys), written];
}

const triangle = (n) => (n * (n + 1)) / 2;
const sawtooth = (n, size) => Math.floor(n / size) * triangle(size) + triangle(n % size);

function pairsOf({ kind, size }, start, end) {
  if (kind === "full") return (end - start) * end;
  if (kind === "local") {
    const near = Math.min(size, end - 1);
    return end * (2 * near + 1) - near * (near + 1);
  }
  if (kind === "window") {
    const first = triangle(Math.min(end, size)) - triangle(Math.min(start, size));
    return first + size * (Math.max(end, size) - Math.max(start, size));
  }
  if (kind === "chunked") return sawtooth(end, size) - sawtooth(start, size);
  if (kind === "recurrent") return sawtooth(end - start, size);
  return triangle(end) - triangle(start);
}

function keysOf({ kind, size }, start, end) {
  if (kind === "window") return Math.min(end, size + end - start - 1);
  if (kind === "chunked") return end - Math.floor(start / size) * size;
  if (kind === "recurrent") return start > 0 ? 1 : 0;
  return end;
}
