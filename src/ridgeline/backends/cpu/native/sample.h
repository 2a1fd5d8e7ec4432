// Samples a token from each row of logits, by the steps listed in engine/sampling/sampler.py, in that order. A row is one
// item. Its token depends neither on other rows nor on the number of threads.
//
// Only a few hundred values around a cut are sorted. Weights are fp32. Their sums are fp32 in blocks of 128 and float64 over
// the blocks, so the draw has to read only one block.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "lanes.h"
#include "pool.h"
#include "random.h"
#include "select.h"

namespace {

constexpr int64_t SUMMED = 128;         // weights of a block
constexpr int64_t SAMPLE = 4096;        // numbers of a row that are sampled to estimate a cut
constexpr double SAMPLE_ERRORS = 3;     // half the width of the estimated range, in standard errors
constexpr int BINS = 2048;              // bins of the sample's weights, by their bits
constexpr float BEYOND = 2;             // larger than any weight: none is over 1

// Call each(numbers, index of the first) for every block of a row's numbers. The last block is padded.
template <class Each> inline void blocks(const float* from, int64_t count, Each&& each) {
    int64_t i = 0;
    for (; i + SUMMED <= count; i += SUMMED) each(from + i, i);
    if (i == count) return;
    float rest[SUMMED];
    std::fill(rest, rest + SUMMED, -INFINITY);
    std::memcpy(rest, from + i, (count - i) * sizeof(float));
    each(static_cast<const float*>(rest), i);
}

struct Largest {
    float value;
    int64_t index;
};

// Return the first of the largest numbers, or NaN if there is a NaN.
inline Largest largest_of(const float* x, int64_t count) {
    float most = -INFINITY;
    int64_t place = 0;
    I odd{};
    blocks(x, count, [&](const float* own, int64_t first) {
        F here = broadcast(-INFINITY);
        I strange{};
        for (int64_t i = 0; i < SUMMED; i += LANES) {
            const F next = load(own + i);
            here = maximum(next, here), strange |= next != next;
        }
        odd |= strange;
        if (const float found = largest(here); found > most) most = found, place = first;
    });
    if (lanes_of(odd)) return {NAN, 0};
    while (x[place] != most) ++place;
    return {most, place};
}

// The tokens that can still be drawn, in the order of their ids. ids: null for the whole vocabulary.
struct Candidates {
    const float* logits;
    const int32_t* ids;
    int64_t count;
    int64_t token(int64_t index) const { return ids ? ids[index] : index; }
};

// The kept candidates: those with weights above the floor, and those equal to it up to an index.
struct Kept {
    float floor = -1;
    int64_t last = 0;
    bool operator()(float weight, int64_t index) const { return weight > floor || (weight == floor && index <= last); }
};

// The sampler and the memory of one thread.
class Sampler {
  public:
    void run(Sampling& row, int64_t vocabulary);

  private:
    const float* changed(const Sampling& row, int64_t vocabulary);
    Candidates top_k(const float* x, int64_t count, int64_t k);
    double weigh(const float* x, int64_t count, float top, float temperature);
    double split(int64_t count, float low, float high);
    std::pair<float, float> guessed(int64_t count, double tail, float least);
    Kept in_top_p(int64_t count, double total, double p);
    int64_t drawn(int64_t count, const Kept& kept, double point) const;
    void draw(Sampling& row, const float* x, int64_t vocabulary);
    void ranked(const Candidates& from, int64_t k, std::vector<int32_t>& to);
    void softmax(const float* x, int64_t vocabulary, float top, int64_t token, int64_t alternatives, Report& to);

    std::vector<float> logits, weights, sample;
    std::vector<double> sums;
    std::vector<int32_t> ranks;
    Subset some, best;
};

inline bool any(const Changes& own) { return own.bias_count || own.forbidden_count || own.allowed || own.history_count; }

// Return the logits after biases, mask and penalties.
inline const float* Sampler::changed(const Sampling& row, int64_t vocabulary) {
    const Changes& own = row.changes;
    logits.assign(row.logits, row.logits + vocabulary);
    for (int64_t i = 0; i < own.bias_count; ++i) logits[own.biased[i]] += own.biases[i];
    for (int64_t i = 0; i < own.forbidden_count; ++i) logits[own.forbidden[i]] = -INFINITY;
    if (own.allowed)
        for (int64_t i = 0; i < vocabulary; ++i) logits[i] = own.allowed[i / 32] >> (i % 32) & 1 ? logits[i] : -INFINITY;
    const float repetition = own.repetition, frequency = own.frequency, presence = own.presence;
    for (int64_t i = 0; i < own.history_count; ++i) {
        float& x = logits[own.history[i]];
        if (repetition != 1) x = x < 0 ? x * repetition : x / repetition;
        x -= float(double(frequency) * own.counts[i]);  // the product is rounded on its own, as in the reference
        x -= own.counts[i] > 0 ? presence : 0;
    }
    return logits.data();
}

// Return the k largest logits, without impossible tokens.
inline Candidates Sampler::top_k(const float* x, int64_t count, int64_t k) {
    // Take enough of the sample that, except once in a thousand times, at least k logits are above the last of them.
    const int64_t stride = std::max<int64_t>(count / SAMPLE, 1), sampled = (count + stride - 1) / stride;
    const double expected = double(k) / stride;
    const int64_t enough = int64_t(expected + SAMPLE_ERRORS * std::sqrt(expected) + SAMPLE_ERRORS);
    auto one = [](float) { return 1.0; };
    float low = -FLT_MAX;
    if (enough < sampled) {
        sample.clear();
        for (int64_t i = 0; i < count; i += stride)
            if (x[i] > -INFINITY) sample.push_back(x[i]);
        if (enough < int64_t(sample.size())) low = floor_of(sample.data(), sample.size(), 0, double(enough), one).value;
    }
    for (;; low = -FLT_MAX) {
        {
            SubsetWriter writer(best, count);
            blocks(x, count, [&](const float* own, int64_t first) {
                for (int64_t i = 0; i < SUMMED; i += LANES) writer.put(load(own + i), load(own + i) >= low, first + i);
            });
        }
        if (best.count >= k || low == -FLT_MAX) break;
    }
    if (best.count > k) {
        sample.assign(best.values.begin(), best.values.begin() + best.count);
        Floor floor = floor_of(sample.data(), best.count, 0, double(k), one);
        int64_t kept = 0;
        for (int64_t i = 0; i < best.count; ++i) {
            const float own = best.values[i];
            if (own > floor.value || (own == floor.value && floor.ties-- > 0)) best.values[kept] = own, best.at[kept++] = best.at[i];
        }
        best.count = kept;
    }
    return {best.values.data(), best.at.data(), best.count};
}

// weights = e^((x - top) / temperature), and their sums by block. Return the sum of all.
inline double Sampler::weigh(const float* x, int64_t count, float top, float temperature) {
    weights.resize(std::max<int64_t>(weights.size(), count + SUMMED));
    sums.resize((count + SUMMED - 1) / SUMMED);
    double total = 0;
    float* to = weights.data();
    blocks(x, count, [=, &total, this](const float* own, int64_t first) {
        F added{};
        for (int64_t i = 0; i < SUMMED; i += LANES) {
            const F weight = exponential((load(own + i) - top) / temperature);
            store(to + first + i, weight), added += weight;
        }
        total += sums[first / SUMMED] = sum(added);
    });
    return total;
}

// sums = the sums of the weights from `high` on; some = the weights from `low` to `high`. Return the total of the sums.
inline double Sampler::split(int64_t count, float low, float high) {
    double total = 0;
    SubsetWriter writer(some, count);
    for (int64_t first = 0; first < count; first += SUMMED) {
        F added{};
        for (int64_t i = first; i < first + SUMMED; i += LANES) {
            const F weight = load(weights.data() + i);
            const I sure = weight >= high;
            added += where(sure, weight, F{});
            writer.put(weight, (weight >= low) & ~sure, i);
        }
        total += sums[first / SUMMED] = sum(added);
    }
    return total;
}

// Return a range of weights, from `least` on, that probably holds the weight below which the mass `tail` lies. A sample
// estimates it, and its sum of squares estimates the variance. The tail is estimated rather than the head: no weight in it is
// above the cut, so a few likely tokens do not disturb the estimate.
inline std::pair<float, float> Sampler::guessed(int64_t count, double tail, float least) {
    const int64_t stride = count / SAMPLE;
    if (stride < 2) return {least, BEYOND};
    uint32_t from, one = 0x3f800000;
    std::memcpy(&from, &least, 4);
    int shift = 0;
    while ((one - from) >> shift >= BINS) ++shift;
    double mass[BINS + 1] = {}, squares[BINS + 1] = {};
    for (int64_t i = 0; i < count; i += stride) {
        const float weight = weights[i];
        uint32_t own;
        std::memcpy(&own, &weight, 4);
        const uint32_t bin = own < from ? 0 : 1 + ((own - from) >> shift);
        mass[bin] += weight, squares[bin] += double(weight) * weight;
    }
    auto edge = [&](int bin) {
        const uint32_t own = from + (uint32_t(bin) << shift);
        float weight;
        std::memcpy(&weight, &own, 4);
        return weight;
    };
    double below = 0, variance = 0;
    const double share = tail / stride;
    for (int bin = 0; bin <= BINS && below < share; ++bin) below += mass[bin], variance += squares[bin];
    const double error = SAMPLE_ERRORS * std::sqrt(variance);
    float low = least, high = BEYOND;
    below = 0;
    for (int bin = 0; bin <= BINS; ++bin) {
        if (below < share - error) low = bin ? edge(bin - 1) : least;
        below += mass[bin];
        if (below > share + error && high == BEYOND) high = edge(bin);
    }
    return {low, std::max(high, low)};
}

// Return the smallest set of the most likely tokens whose mass is at least p of the total. It is never empty. sums = the sums
// of the set.
inline Kept Sampler::in_top_p(int64_t count, double total, double p) {
    const double target = p * total, tail = total - target;
    // Weights below tail / count cannot add up to the tail, so the cut is not below them.
    const float least = float(std::max(0.999 * tail / count, double(FLT_MIN)));
    auto [low, high] = guessed(count, tail, least);
    for (;;) {
        const double above = split(count, low, high);
        double mass = 0;
        for (int64_t i = 0; i < some.count; ++i) mass += some.values[i];
        if (above < target && above + mass >= target) {
            sample.assign(some.values.begin(), some.values.begin() + some.count);
            const Floor floor = floor_of(sample.data(), some.count, above, target, [](float weight) { return double(weight); });
            Kept kept{floor.value, -1};
            int64_t ties = floor.ties;
            for (int64_t i = 0; i < some.count; ++i) {
                const float own = some.values[i];
                if (own < floor.value || (own == floor.value && ties-- <= 0)) continue;
                if (own == floor.value) kept.last = some.at[i];
                sums[some.at[i] / SUMMED] += own;
            }
            return kept;
        }
        if (low == FLT_MIN && high == BEYOND) break;
        low = low == least && high == BEYOND ? FLT_MIN : least, high = BEYOND;
    }
    // p is so close to 1 that rounding puts the target above the sum.
    split(count, 0, 0);
    return {};
}

// Return the index at which the cumulative weight of the kept tokens first exceeds a point. If rounding has put the point at
// the end, return the last index with a weight.
inline int64_t Sampler::drawn(int64_t count, const Kept& kept, double point) const {
    double before = 0;
    int64_t block = -1, last = 0;
    for (int64_t i = 0; i * SUMMED < count; ++i) {
        if (sums[i] <= 0) continue;
        if (block >= 0) before += sums[block];
        block = i;
        if (before + sums[i] > point) break;
    }
    double reached = before;
    for (int64_t i = block * SUMMED; i < std::min((block + 1) * SUMMED, count); ++i) {
        if (!(weights[i] > 0 && kept(weights[i], i))) continue;
        reached += weights[i], last = i;
        if (reached > point) break;
    }
    return last;
}

inline void Sampler::draw(Sampling& row, const float* x, int64_t vocabulary) {
    const Settings& settings = row.settings;
    const bool few = settings.top_k > 0 && settings.top_k < vocabulary;
    const Candidates from = few ? top_k(x, vocabulary, settings.top_k) : Candidates{x, nullptr, vocabulary};
    double total = weigh(from.logits, from.count, row.top, float(settings.temperature));
    Kept kept;
    if (settings.top_p < 1) kept = in_top_p(from.count, total, settings.top_p);
    if (const float min_p = settings.min_p; min_p > 0 && min_p > kept.floor) {
        kept = {min_p, from.count};
        split(from.count, min_p, min_p);
    }
    total = 0;
    for (int64_t i = 0; i * SUMMED < from.count; ++i) total += sums[i];
    const int64_t index = drawn(from.count, kept, uniform(settings.seed, settings.position, settings.choice) * total);
    row.token = from.token(index);
    if (settings.alternatives < 0) return;
    const double log_total = std::log(total);
    auto share = [&](int64_t i) { return (double(from.logits[i]) - row.top) / settings.temperature - log_total; };
    row.processed.own = share(index);
    int64_t& listed = row.processed.count = 0;
    ranked(from, settings.alternatives, ranks);
    // The kept tokens are a prefix of the ranking.
    for (int32_t i : ranks) {
        if (!(weights[i] > 0 && kept(weights[i], i))) continue;
        row.processed.ids[listed] = from.token(i), row.processed.shares[listed++] = share(i);
    }
}

// Write the indices of the k most likely tokens, most likely first.
inline void Sampler::ranked(const Candidates& from, int64_t k, std::vector<int32_t>& to) {
    to.clear();
    if (k == 0) return;
    if (k < from.count && !from.ids) {
        const Candidates largest = top_k(from.logits, from.count, k);
        to.assign(largest.ids, largest.ids + largest.count);
    } else {
        for (int64_t i = 0; i < from.count; ++i)
            if (from.logits[i] > -INFINITY) to.push_back(int32_t(i));
    }
    std::stable_sort(to.begin(), to.end(), [&](int32_t a, int32_t b) { return from.logits[a] > from.logits[b]; });
    if (int64_t(to.size()) > k) to.resize(k);
}

// Report the softmax of logits for one token and for the most likely ones.
inline void Sampler::softmax(const float* x, int64_t vocabulary, float top, int64_t token, int64_t alternatives, Report& to) {
    const double log_total = double(top) + std::log(weigh(x, vocabulary, top, 1));
    to.own = double(x[token]) - log_total;
    ranked({x, nullptr, vocabulary}, alternatives, ranks);
    to.count = ranks.size();
    for (int64_t i = 0; i < to.count; ++i) to.ids[i] = ranks[i], to.shares[i] = double(x[ranks[i]]) - log_total;
}

inline void Sampler::run(Sampling& row, int64_t vocabulary) {
    const Settings& settings = row.settings;
    Largest found = largest_of(row.logits, vocabulary);
    row.raw_top = row.top = found.value;
    if (!std::isfinite(row.raw_top)) return;
    if (row.token >= 0) return softmax(row.logits, vocabulary, row.top, row.token, settings.alternatives, row.raw);
    const float* x = row.logits;
    if (any(row.changes)) {
        x = changed(row, vocabulary);
        found = largest_of(x, vocabulary);
        row.top = found.value;
        if (!std::isfinite(row.top)) return;
    }
    if (settings.temperature > 0)
        draw(row, x, vocabulary);
    else
        row.token = found.index;
    if (settings.alternatives < 0) return;
    if (settings.temperature <= 0) softmax(x, vocabulary, row.top, row.token, settings.alternatives, row.processed);
    softmax(row.logits, vocabulary, row.raw_top, row.token, settings.alternatives, row.raw);
}

void sample(Pool& pool, Sampling* rows, int count, int64_t vocabulary) {
    pool.run(count, [&](int item) {
        thread_local Sampler sampler;
        sampler.run(rows[item], vocabulary);
    });
}

}  // namespace
