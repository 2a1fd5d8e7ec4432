// The price of a step, from an op table (`ridgeline page tables`) and a device (`cards.json`): cost, floor, bound and
// expected, as price/price.py and price/op_time.py have them. It knows no model: every op says by its lines what it
// costs, and this adds up. Pure: no page, no requests. Bytes, seconds, FLOPs; never GB, ms or TFLOP.
//
//   openTable(data)                    the table to price with. data: what `page tables` wrote. Throws for another format
//   openCards(data)                    {cards, engines} by name. data: cards.json. Throws likewise
//   drive(card, engine, devices)       Device: the card as an engine drives so many (`cards` and `engines` of cards.json)
//   scaled(device, {flops, bandwidth, memory})  the same card with so many times of each
//   priceStep(table, device, work, ranks)  {cost, floor, bound, expected, host, workingSet, rows}; work: of work.js. rows:
//                                      [{op, cost, bound, expected, limit}], of one of op.count calls; limit: "compute",
//                                      "memory" or "communication". ranks: of a table whose ranks have requests of their
//                                      own, those that have rows. Throws where nothing joins the cards
//   stepCost(table, work, ranks)       the cost alone, of no device
//   computeSeconds(cost, device), memorySeconds(cost, device, workingSet), bandwidthOf(device, bytes), peakOf(device, format)
//   totalFlops(cost), memoryBytes(cost) (weights and KV), totalBytes(cost) (with activations), plus(cost, other)
//   activationPeak(table, work)        bytes of activations alive at once in a step
//   touchedBy(op.touched, rows)        distinct experts that rows hit, of an op that has some
//
// A cost is {flops: {format: n}, weights, read, written, activations, communication: {collective: bytes}}; read and written
// are of keys and values.

import { allReduceSeconds } from "page/link.js";

export const FORMAT = 1;
const CLASSES = ["one", "few", "many"];
const ROUNDS = { all_reduce: 2, all_gather: 1, all_to_all: 1 };
const AGAIN = 3; // place among the constants of a kernel class of what a further call counts
const ELEMENTWISE = { name: "elementwise", format: "" };
const BYTES = ["weights", "read", "written", "activations"];
const KEPT = 1024; // numbers of rows whose costs an op keeps

// -- tables ----------------------------------------------------------------------------------------------------------

export function openTable(data) {
  checkFormat(data, "table", "ridgeline page tables MODEL");
  const records = data.records.map(compileRecord);
  return { ...data, ops: data.ops.map((op) => compileOp(op, records)) };
}

export function openCards(data) {
  checkFormat(data, "list of devices", "ridgeline page devices");
  const cards = Object.entries(data.cards).map(([name, card]) => {
    const link = card.link && { ...card.link, all_reduce: data.reductions[card.link.all_reduce] };
    return [name, { ...card, link, efficiency: data.kernels[card.kernels], found: new WeakMap() }];
  });
  return { cards: Object.fromEntries(cards), engines: data.engines };
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
    return { sort, format, line };
  });
  return { figures };
}

function compileOp(op, records) {
  const entry = (each) => ({
    ...each,
    format: each.format || "",
    sharers: each.sharers || 1,
    of: Object.fromEntries(Object.entries(each.of).map(([name, cases]) => [name, resolve(cases, records)])),
    once: each.once === undefined ? null : records[each.once],
  });
  const kernels = op.kernels.map(entry);
  const compiled = { ...op, cost: entry(op.cost), kernels, native: op.native ? op.native.map(entry) : kernels };
  return { ...compiled, alone: aloneIn(compiled), known: { kernels: new Map(), native: new Map() } };
}

function resolve(cases, records) {
  return Object.fromEntries(Object.entries(cases).map(([number, place]) => [number, records[place]]));
}

// By class and case, the records of an op that has nothing else in a step, as most have: what is looked up most.
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
  return { flops: {}, weights: 0, read: 0, written: 0, activations: 0, communication: {}, again: 0 };
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

export function plus(cost, other) {
  const sum = nothing();
  addTo(sum, cost, 1);
  addTo(sum, other, 1);
  return sum;
}

const sumOf = (values) => Object.values(values).reduce((sum, value) => sum + value, 0);
export const totalFlops = (cost) => sumOf(cost.flops);
export const memoryBytes = (cost) => cost.weights + cost.read + cost.written;
export const totalBytes = (cost) => memoryBytes(cost) + cost.activations;

// -- devices ---------------------------------------------------------------------------------------------------------

export function drive(card, engine, devices = 1) {
  const nvlink = card.link !== null && card.link.name.startsWith("NVLink");
  const where = nvlink ? "NVLink" : devices === 2 ? "pair" : "other";
  return {
    ...card,
    devices,
    host: card.calibrated && card.host ? card.host : engine.host,
    allReduce: engine.all_reduce[where] || engine.all_reduce.other,
    rereads: engine.rereads,
    dequantise: engine.dequantise,
    copies: engine.copies,
  };
}

export function scaled(device, { flops = 1, bandwidth = 1, memory = 1 }) {
  const scale = (peaks) => Object.fromEntries(Object.entries(peaks).map(([format, peak]) => [format, peak * flops]));
  const caches = device.caches.map((cache) => ({ ...cache, bandwidth: cache.bandwidth * bandwidth }));
  const peaks = { peaks: scale(device.peaks), speeds: scale(device.speeds) };
  const main = { bandwidth: device.bandwidth * bandwidth, memory: device.memory * memory };
  return { ...device, ...peaks, ...main, caches };
}

export function peakOf(device, format) {
  const peak = device.speeds[device.instead[format] || format];
  if (peak === undefined) throw new Error(`${device.name} has no peak for ${format}`);
  return peak;
}

export function bandwidthOf(device, bytes) {
  let bandwidth = device.bandwidth;
  for (const cache of device.caches) {
    if (cache.nbytes >= bytes && cache.bandwidth > bandwidth) bandwidth = cache.bandwidth;
  }
  return bandwidth;
}

function efficiencyOf(device, kernel) {
  let found = device.found.get(kernel);
  if (found === undefined) {
    found = lookUp(device.efficiency, kernel.name, device.instead[kernel.format] || kernel.format);
    device.found.set(kernel, found);
  }
  return found;
}

function lookUp(known, kernel, format) {
  for (let name = kernel; name; name = name.slice(0, Math.max(name.lastIndexOf("."), 0))) {
    const found = known[`${name}/${format}`] || known[name];
    if (found) return found;
  }
  return known.default;
}

// -- seconds ---------------------------------------------------------------------------------------------------------

export function computeSeconds(cost, device) {
  let seconds = 0;
  for (const format in cost.flops) {
    const own = cost.flops[format] / peakOf(device, format);
    if (own > seconds) seconds = own;
  }
  return seconds;
}

export function memorySeconds(cost, device, workingSet) {
  return memoryBytes(cost) / bandwidthOf(device, workingSet) + cost.activations / bandwidthOf(device, cost.activations);
}

function kernelSeconds(efficiency, launches, arithmetic, traffic, isRecorded) {
  const [launch, compute, memory, , blend, recorded] = efficiency;
  const launching = (isRecorded && recorded !== null ? recorded : launch) * launches;
  const [a, b] = [arithmetic / compute, traffic / memory];
  return launching + (blend === 2 ? Math.sqrt(a * a + b * b) : Math.pow(Math.pow(a, blend) + Math.pow(b, blend), 1 / blend));
}

function communicationSeconds(cost, device, devices) {
  if (device.link === null) throw new Error(`${device.name} has no link to other GPUs; use one GPU, or a GPU with a link`);
  const time = { bound: 0, expected: 0, limit: "communication" };
  for (const [collective, bytes] of Object.entries(cost.communication)) {
    const rounds = ROUNDS[collective];
    const least = (((rounds * (devices - 1)) / devices) * bytes) / device.link.bandwidth;
    time.bound += least;
    time.expected += Math.max(least, allReduceSeconds(device.link, (rounds / 2) * bytes, devices, device.allReduce));
  }
  return time;
}

function rereadingSeconds(kernel, cost, device) {
  const sharers = kernel.sharers;
  if (!device.rereads || sharers === 1 || !kernel.name.startsWith("attention.decode")) return 0;
  const largest = device.caches.reduce((a, b) => (a && a.nbytes >= b.nbytes ? a : b), null);
  return ((sharers - 1) * cost.read) / (largest ? largest.bandwidth : device.bandwidth);
}

function copyingSeconds(kernel, cost, device) {
  const copies = device.copies;
  if (!copies || !kernel.name.startsWith("attention.prefill")) return 0;
  const bytes = copies.queries * cost.activations + 2 * copies.keys * cost.written;
  return kernelSeconds(efficiencyOf(device, ELEMENTWISE), copies.launches, 0, bytes / bandwidthOf(device, bytes), false);
}

// card: seconds of the ops, which hide what the host takes to ask for them where they run meanwhile.
function hostSeconds(work, cost, calls, device, isRecorded, card) {
  const host = device.host;
  if (!host) return 0;
  const cached = device.caches.reduce((most, cache) => Math.max(most, cache.nbytes), 0);
  let asked = isRecorded ? 0 : host.asked + host.op * calls;
  if (host.ahead) asked = Math.max(0, asked - card);
  const prompts = work.rows.tokens === work.rows.logits && !work.rows.encoder ? 0 : host.prompts;
  const each = host.sequence * work.sequences + host.token * work.rows.tokens;
  return host.step + prompts + asked + each + host.byte * Math.min(totalBytes(cost), cached);
}

// -- a step ----------------------------------------------------------------------------------------------------------

export function priceStep(table, device, work, ranks = table.ranks) {
  checkDevice(table, device);
  const list = device.native && table.native ? "native" : "kernels";
  const total = nothing();
  let calls = 0;
  const priced = table.ops.map((op) => {
    const each = costIn(op, work, ranks, list);
    addTo(total, each.cost, op.count);
    if (work.rows[op.space]) calls += op.count;
    return each;
  });
  const workingSet = memoryBytes(total);
  const isRecorded = device.native && recordedIn(table, work);
  const on = { device, workingSet, isRecorded, devices: table.devices };
  let [bound, expected] = [0, 0];
  const rows = table.ops.map((op, i) => {
    const time = opSeconds(priced[i].cost, priced[i].kernels, on);
    bound += time.bound * op.count;
    expected += time.expected * op.count;
    return { op, cost: priced[i].cost, ...time };
  });
  const floor = Math.max(computeSeconds(total, device), workingSet / bandwidthOf(device, workingSet));
  const seconds = hostSeconds(work, total, calls, device, isRecorded, expected);
  const host = device.host && device.host.overlap ? Math.max(0, seconds - expected) : seconds;
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

// The classes of a work that an op has something to do for: [name, case, values that its lines are in].
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
    if (sums) present.push([name, caseOf(op.switches, sums), sums]);
  }
  return present;
}

export function touchedBy([count, active], rows) {
  return count * (1 - Math.pow(1 - active / count, rows));
}

function caseOf(switches, [, queries, pairs, keys]) {
  let number = 0;
  switches.forEach(([query, pair, key, most], i) => {
    if (query * queries + pair * pairs + key * keys <= most) number += 1 << i;
  });
  return number;
}

function rowsOf(op, work, ranks) {
  return (work.rows[op.space] || 0) * (op.gathers ? ranks : 1);
}

// costOf; an op of rows costs the same whatever the card and whatever else a step runs, so it is summed up once.
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

// The cost of an op, and the kernels that it runs, each with its own.
function costOf(op, present, list) {
  if (!present.length) return { cost: nothing(), kernels: [] };
  if (present.length === 1) {
    const [[name, number, values]] = present;
    const alone = op.alone[name][number];
    const cost = valuesOf(alone.cost, values);
    const own = ({ kernel, record }) => ({ kernel, own: record === alone.cost ? cost : valuesOf(record, values) });
    return { cost, kernels: alone[list].map(own) };
  }
  const there = op[list].filter((kernel) => present.some(([name, number]) => kernel.of[name] && kernel.of[name][number]));
  return { cost: sumUp(op.cost, present), kernels: there.map((kernel) => ({ kernel, own: sumUp(kernel, present) })) };
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

function opSeconds(cost, kernels, { device, workingSet, isRecorded, devices }) {
  for (const _ in cost.communication) return communicationSeconds(cost, device, devices);
  const compute = computeSeconds(cost, device);
  const memory = memorySeconds(cost, device, workingSet);
  let expected = 0;
  for (const { kernel, own } of kernels) {
    const efficiency = efficiencyOf(device, kernel);
    const arithmetic = own === cost ? compute : computeSeconds(own, device);
    let traffic = own === cost ? memory : memorySeconds(own, device, workingSet);
    if (kernel.stored) traffic /= device.dequantise[kernel.stored] || 1;
    expected += kernelSeconds(efficiency, 1 + efficiency[AGAIN] * own.again, arithmetic, traffic, isRecorded);
    expected += rereadingSeconds(kernel, own, device) + copyingSeconds(kernel, own, device);
  }
  return { bound: Math.max(compute, memory), expected, limit: compute > memory ? "compute" : "memory" };
}

function recordedIn(table, work) {
  const { tokens, logits, encoder } = work.rows;
  return work.sequences <= table.recorded && tokens === logits && tokens === work.sequences && !encoder;
}

// Most bytes of activations alive at once in a step (price/activations.py): of the widest kernel, and of the widest
// that adds to the residual stream.
export function activationPeak(table, work) {
  let [widest, residual] = [0, 0];
  for (const op of table.ops) {
    for (const { kernel, own } of costIn(op, work, table.ranks, "kernels").kernels) {
      widest = Math.max(widest, own.activations);
      if (kernel.name === "elementwise.add") residual = Math.max(residual, own.activations);
    }
  }
  return widest + residual;
}
