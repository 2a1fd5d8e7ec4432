// Seconds of an all-reduce over a link, as price/interconnect.py has them: by size of the message, number of cards and kind of
// kernel. Pure.

export function allReduceSeconds(link, bytes, cards, kind) {
  const known = link.all_reduce[kind] || Object.values(link.all_reduce)[0];
  const counts = Object.keys(known).map(Number);
  const below = counts.filter((count) => count <= cards);
  const above = counts.filter((count) => count >= cards);
  const fewer = below.length ? Math.max(...below) : Math.min(...counts);
  const more = above.length ? Math.min(...above) : Math.max(...counts);
  const seconds = curveAt(known[fewer], bytes);
  if (!(fewer < cards && cards < more)) return seconds;
  const part = Math.log2(cards / fewer) / Math.log2(more / fewer);
  return seconds + part * (curveAt(known[more], bytes) - seconds);
}

function curveAt([sizes, seconds], bytes) {
  let above = 0;
  while (above < sizes.length && sizes[above] <= bytes) above++;
  const last = sizes.length - 1;
  if (above === 0) return seconds[0];
  if (above > last) {
    const rise = last > 0 ? (seconds[last] - seconds[last - 1]) / (sizes[last] - sizes[last - 1]) : 0;
    return seconds[last] + rise * (bytes - sizes[last]);
  }
  const low = sizes[above - 1];
  const part = Math.log(bytes / low) / Math.log(sizes[above] / low);
  return seconds[above - 1] * Math.pow(seconds[above] / seconds[above - 1], part);
}
