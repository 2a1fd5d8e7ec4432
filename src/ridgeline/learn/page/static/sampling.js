// The processing of a model's candidates before one is drawn: steps 5 to 9 of engine/sampling/sampler.py, for the most
// likely candidates, which a response contains.

const GREEDY_BELOW = 1e-5;

/**
 * Return the probability of each candidate to be drawn, and whether that is exact. candidates: with the model's own `logprob`, most likely
 * first. rules: temperature, top_k (0 = off), top_p, min_p. Other tokens count as probability 0, which is
 * exact if top-k keeps no more tokens than there are candidates.
 */
export function chances(candidates, { temperature, top_k: k, top_p: p, min_p: least = 0 }) {
  if (temperature < GREEDY_BELOW) return { shares: candidates.map((_, at) => (at === 0 ? 1 : 0)), exact: true };
  const highest = candidates[0]?.logprob ?? 0;
  const weights = candidates.map(({ logprob }) => Math.exp((logprob - highest) / temperature));
  const kept = weights.map((weight, at) => ((k > 0 && at >= k) || weight < least ? 0 : weight));
  const target = p * weights.reduce((sum, weight, at) => (k > 0 && at >= k ? sum : sum + weight), 0);
  let mass = 0;
  const nucleus = weights.map((weight, at) => {
    const inside = p >= 1 || mass < target;
    mass += weight;
    return inside ? kept[at] : 0;
  });
  const total = nucleus.reduce((sum, weight) => sum + weight, 0);
  return { shares: nucleus.map((weight) => weight / total), exact: k > 0 && k <= candidates.length };
}
