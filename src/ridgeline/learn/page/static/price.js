// The price of a step, from an op table (`ridgeline page tables`) and a device (`cards.json`): cost, floor, bound and
// expected, like price/price.py and price/op_time.py. It knows no model: the table states the cost of every op, and
// this file adds them up. Pure functions: no page, no requests. Bytes, seconds, FLOPs; never GB, ms or TFLOP.
//
//   openTable(data)                    the table for pricing. data: the output of `page tables`. Throws for another format
//   openCards(data)                    {cards, engines} by name, {intervals} by kind and level, {levels}, a text on each.
//                                      data: cards.json. Throws for another format
//   drive(card, engine, devices)       Device: the card as an engine drives this number of them (`cards` and `engines` of
//                                      cards.json)
//   scaled(device, {flops, bandwidth, memory})  the same card with each multiplied by a factor
//   priceStep(table, device, work, ranks)  {cost, floor, bound, expected, host, workingSet, rows}; work: of work.js. rows:
//                                      [{priced: {op, count}, cost, time}], each for one of `count` calls. ranks: for a
//                                      table whose ranks have requests of their own, the number of ranks with rows. Throws
//                                      if no link connects the cards
//   stepCost(table, work, ranks)       the cost alone, without a device
//   activationPeak(table, work)        the peak bytes of activations in a step
//   touchedBy(op.touched, rows)        the number of distinct experts that rows use, for an op with experts
//
// formulas.js and step_formulas.js, generated from Python, have the rest: seconds of a cost, the peak and the bandwidth
// of a device. Costs and devices have the fields of core/ops/cost.py and price/device.py.

import { Curve, Device_efficiency_of, Efficiency, EngineProfile_on, ExpectedExperts_expected_hits, added_host_seconds, floor_seconds, host_seconds, op_seconds } from "page/formulas.js";
import { Cost, Cost_memory_bytes, Work_is_decode } from "page/step_formulas.js";

export const FORMAT = 1;
const CLASSES = ["one", "few", "many"];
const FIELDS = { weights: "weight_bytes", read: "kv_read_bytes", written: "kv_write_bytes", activations: "activation_bytes" };
const BYTES = Object.values(FIELDS);
const KEPT = 1024; // maximum number of row counts whose costs are cached per op

// -- tables ----------------------------------------------------------------------------------------------------------

export function openTable(data) {
  checkFormat(data, "table", "ridgeline page tables MODEL");
  const records = data.records.map(compileRecord);
  const reaches = data.reaches.map((reach) => ({ ...reach, query_axis: reach.space }));
  return { ...data, reaches, ops: data.ops.map((op) => compileOp(op, records)) };
}

export function openCards(data) {
  checkFormat(data, "list of devices", "ridgeline page devices");
  const cards = changed(data.cards, (card) => openCard(card, data.kernels, data.reductions));
  return { cards, engines: data.engines, intervals: data.intervals, levels: data.levels };
}

function checkFormat(data, what, command) {
  if (data && data.format === FORMAT) return;
  const own = data && typeof data.command === "string" ? data.command : command;
  const found = data && data.format !== undefined ? `of format ${data.format}` : "without a format";
  throw new Error(`a ${what} ${found}, this page reads format ${FORMAT}: make it again with \`${own}\``);
}

function compileRecord(record) {
  const figures = Object.entries(record).map(([name, line]) => {
    const [sort, format] = name.split("/");
    return { sort: FIELDS[sort] || sort, format, line };
  });
  return { figures };
}

function compileOp(op, records) {
  const entry = (each) => ({
    ...each,
    format: each.format || "",
    sharers: each.sharers || 1,
    of: Object.fromEntries(Object.entries(each.of).map(([name, cases]) => [name, recordsOf(cases, records)])),
    once: each.once === undefined ? null : records[each.once],
  });
  const kernels = op.kernels.map(entry);
  const compiled = { ...op, cost: entry(op.cost), kernels, native: op.native ? op.native.map(entry) : kernels };
  return { ...compiled, alone: aloneIn(compiled), known: { kernels: new Map(), native: new Map() } };
}

function recordsOf(cases, records) {
  return Object.fromEntries(Object.entries(cases).map(([number, place]) => [number, records[place]]));
}

// Return, by class and case, the records of an op for steps that have nothing else, as most steps do. They are looked
// up most often.
function aloneIn(op) {
  const alone = {};
  for (const [name, cases] of Object.entries(op.cost.of)) {
    alone[name] = {};
    for (const number of Object.keys(cases)) {
      const of = (kernels) =>
        kernels
          .filter((kernel) => kernel.of[name] && kernel.of[name][number])
          .map((kernel) => ({ kernel, record: kernel.of[name][number] }));
      alone[name][number] = { cost: cases[number], kernels: of(op.kernels), native: of(op.native) };
    }
  }
  return alone;
}

// -- costs -----------------------------------------------------------------------------------------------------------

function nothing() {
  const cost = Cost({}, 0, 0, 0, 0, {});
  cost.again = 0; // calls of a kernel after the first
  return cost;
}

function add(cost, record, values, factor) {
  for (const { sort, format, line } of record.figures) {
    let value = line[0];
    for (let i = 1; i < line.length; i++) value += line[i] * values[i - 1];
    value *= factor;
    if (format === undefined) cost[sort] += value;
    else cost[sort][format] = (cost[sort][format] || 0) + value;
  }
  return cost;
}

function addTo(total, cost, count) {
  for (const name of BYTES) total[name] += cost[name] * count;
  for (const name in cost.flops) total.flops[name] = (total.flops[name] || 0) + cost.flops[name] * count;
  for (const name in cost.communication) {
    total.communication[name] = (total.communication[name] || 0) + cost.communication[name] * count;
  }
}

// -- devices ---------------------------------------------------------------------------------------------------------

function openCard(card, kernels, reductions) {
  const { link, instead } = card;
  const curves = (kinds) => changed(kinds, (counts) => changed(counts, (curve) => Curve(...curve)));
  const efficiency = changed(kernels[card.kernels], (constants) => Efficiency(...constants));
  return {
    ...card,
    link: link && { ...link, all_reduce: curves(reductions[link.all_reduce]) },
    efficiency: Object.keys(instead).length ? insteadOf(instead, efficiency) : efficiency,
  };
}

const changed = (mapping, change) => Object.fromEntries(Object.entries(mapping).map(([name, each]) => [name, change(each)]));

// A format that the card computes in another one has the constants of that one.
function insteadOf(instead, efficiency) {
  const own = Object.entries(efficiency).filter(([name]) => !(name.split("/")[1] in instead));
  const others = Object.entries(instead).flatMap(([format, other]) =>
    own.filter(([name]) => name.endsWith(`/${other}`)).map(([name, each]) => [name.replace(`/${other}`, `/${format}`), each]),
  );
  return Object.fromEntries([...own, ...others]);
}

export function drive(card, engine, devices = 1) {
  const peaks = Object.entries(card.instead).map(([format, other]) => [format, card.speeds[other]]);
  return {
    ...EngineProfile_on(engine, card, devices),
    peaks: { ...card.peaks, ...Object.fromEntries(peaks) },
    devices,
    efficiency: { ...card.efficiency },
    resolved: new WeakSet(),
  };
}

// Add the constants of a table's kernels under their full names, so that a step finds them with one lookup.
function resolve(device, table) {
  if (device.resolved.has(table)) return;
  device.resolved.add(table);
  for (const { name, format } of table.ops.flatMap((op) => [...op.kernels, ...op.native])) {
    device.efficiency[`${name}/${format}`] = Device_efficiency_of(device, name, format);
  }
}

export function scaled(device, { flops = 1, bandwidth = 1, memory = 1 }) {
  const scale = (peaks) => changed(peaks, (peak) => peak * flops);
  const caches = device.caches.map((cache) => ({ ...cache, bandwidth: cache.bandwidth * bandwidth }));
  const peaks = { peaks: scale(device.peaks), speeds: scale(device.speeds) };
  const main = { bandwidth: device.bandwidth * bandwidth, memory: device.memory * memory };
  return { ...device, ...peaks, ...main, caches };
}

// -- a step ----------------------------------------------------------------------------------------------------------

export function priceStep(table, device, work, ranks = table.ranks) {
  checkDevice(table, device);
  resolve(device, table);
  const list = device.native && table.native ? "native" : "kernels";
  const total = nothing();
  let calls = 0;
  const priced = table.ops.map((op) => {
    const each = costIn(op, work, ranks, list);
    addTo(total, each.cost, op.count);
    if (work.rows[op.space]) calls += op.count;
    return each;
  });
  const workingSet = Cost_memory_bytes(total);
  const isRecorded = device.native && Work_is_decode(work) && work.sequences <= table.recorded;
  let [bound, expected] = [0, 0];
  const rows = table.ops.map((op, i) => {
    const time = op_seconds(priced[i].cost, priced[i].launches, device, workingSet, table.devices, isRecorded);
    bound += time.bound * op.count;
    expected += time.expected * op.count;
    return { priced: { op, count: op.count }, cost: priced[i].cost, time };
  });
  const floor = floor_seconds(total, device, workingSet);
  const prompts = Math.max(0, ...work.attention.map((each) => each.few.sequences + each.many.sequences)); // Work.prompts
  const own = host_seconds(work, total, calls, device, isRecorded, expected, prompts, table.logits);
  const host = added_host_seconds(expected, own, device);
  return { cost: total, floor, bound, expected: expected + host, host, workingSet, rows };
}

export function stepCost(table, work, ranks = table.ranks) {
  const total = nothing();
  for (const op of table.ops) addTo(total, costIn(op, work, ranks, "kernels").cost, op.count);
  return total;
}

function checkDevice(table, device) {
  if (table.otherwise.includes(device.kind)) {
    throw new Error(`${device.title} has ${table.model} stored in another way than its table; ridgeline plan prices it`);
  }
  if (device.native && table.ranks > 1) throw new Error(`${device.title} cannot be priced for experts that take rows of several ranks`);
}

// Return the classes of a work for which an op has something to do: [name, case, values of its lines].
function presentOf(op, work, ranks) {
  if (op.reach === undefined) {
    const count = rowsOf(op, work, ranks);
    if (!count) return [];
    let step = op.steps.length - 1;
    while (op.steps[step] > count) step--;
    return [["rows", step, op.touched ? [count, touchedBy(op.touched, count)] : [count]]];
  }
  const present = [];
  for (const name of CLASSES) {
    const sums = work.attention[op.reach][name];
    if (sums.queries || sums.written) present.push([name, caseOf(op.switches, sums), Object.values(sums)]);
  }
  return present;
}

export function touchedBy([count, active], rows) {
  return ExpectedExperts_expected_hits({ count, active }, rows);
}

function caseOf(switches, { queries, pairs, keys }) {
  let number = 0;
  switches.forEach(([query, pair, key, most], i) => {
    if (query * queries + pair * pairs + key * keys <= most) number += 1 << i;
  });
  return number;
}

function rowsOf(op, work, ranks) {
  return (work.rows[op.space] || 0) * (op.gathers ? ranks : 1);
}

// Return costOf, cached: an op of rows costs the same on every card and with any other work in the step.
function costIn(op, work, ranks, list) {
  if (op.reach !== undefined) return costOf(op, presentOf(op, work, ranks), list);
  const [known, rows] = [op.known[list], rowsOf(op, work, ranks)];
  let cost = known.get(rows);
  if (cost === undefined) {
    if (known.size >= KEPT) known.clear();
    cost = costOf(op, presentOf(op, work, ranks), list);
    known.set(rows, cost);
  }
  return cost;
}

// Return the cost of an op, and the launches of its kernels.
function costOf(op, present, list) {
  if (!present.length) return { cost: nothing(), launches: [] };
  if (present.length === 1) {
    const [[name, number, values]] = present;
    const alone = op.alone[name][number];
    const cost = valuesOf(alone.cost, values);
    const own = ({ kernel, record }) => launchOf(kernel, record === alone.cost ? cost : valuesOf(record, values));
    return { cost, launches: alone[list].map(own) };
  }
  const there = op[list].filter((kernel) => present.some(([name, number]) => kernel.of[name] && kernel.of[name][number]));
  return { cost: sumUp(op.cost, present), launches: there.map((kernel) => launchOf(kernel, sumUp(kernel, present))) };
}

function launchOf({ name, format, stored = "", sharers }, cost) {
  return { name, number_format: format, calls: 1 + cost.again, cost, weight_format: stored, query_heads_per_kv_head: sharers };
}

function sumUp(entry, present) {
  const cost = nothing();
  let found = 0;
  for (const [name, number, values] of present) {
    const record = entry.of[name] && entry.of[name][number];
    if (!record) continue;
    add(cost, record, values, 1);
    found++;
  }
  if (found > 1 && entry.once) add(cost, entry.once, [], 1 - found);
  return cost;
}

function valuesOf(record, values) {
  return add(nothing(), record, values, 1);
}

// Return the peak bytes of activations in a step (price/activations.py): those of the widest kernel, and of the widest
// one that adds to the residual stream.
export function activationPeak(table, work) {
  let [widest, residual] = [0, 0];
  for (const op of table.ops) {
    for (const { name, cost } of costIn(op, work, table.ranks, "kernels").launches) {
      widest = Math.max(widest, cost.activation_bytes);
      if (name === "elementwise.add") residual = Math.max(residual, cost.activation_bytes);
    }
  }
  return widest + residual;
}
