// Cuts of unsorted values: the largest ones up to a count or a mass. Of equal values the lower index comes first.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lanes.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

// Return the chosen lanes as bits, the first lane in the lowest bit.
inline uint32_t lanes_of(I chosen) {
#if LANES == 16
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(chosen));
#elif LANES == 8
    return _mm256_movemask_ps(reinterpret_cast<__m256>(chosen));
#elif defined(__SSE2__)
    return _mm_movemask_ps(reinterpret_cast<__m128>(chosen));
#elif defined(__aarch64__)
    return vaddvq_u32(reinterpret_cast<U>(chosen) & U{1, 2, 4, 8});
#else
    uint32_t lanes = 0;
    for (int lane = 0; lane < LANES; ++lane) lanes |= (chosen[lane] & 1u) << lane;
    return lanes;
#endif
}

// Some numbers of a row with their indices, in the order of the indices.
struct Subset {
    std::vector<float> values;
    std::vector<int32_t> at;
    int64_t count = 0;
};

// Fills a subset from the front. put(numbers, chosen, index) appends those of LANES numbers that are chosen.
class SubsetWriter {
  public:
    SubsetWriter(Subset& some, int64_t most) : some(some) {
        if (int64_t(some.values.size()) < most) some.at.resize(most), some.values.resize(most);
        values = some.values.data(), at = some.at.data();
    }
    ~SubsetWriter() { some.count = count; }
    void put(F numbers, I chosen, int64_t index) {
        for (uint32_t lanes = lanes_of(chosen); lanes; lanes &= lanes - 1) {
            const int lane = __builtin_ctz(lanes);
            values[count] = numbers[lane], at[count++] = int32_t(index + lane);
        }
    }

  private:
    Subset& some;
    float* values;
    int32_t* at;
    int64_t count = 0;
};

// A cut that keeps the values above `value`, and the first `ties` of those equal to it.
struct Floor {
    float value;
    int64_t ties;
};

// Return the smallest and the largest value.
inline std::pair<float, float> minmax_of(const float* values, int64_t count) {
    F low = broadcast(values[0]), high = low;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) low = -maximum(-load(values + i), -low), high = maximum(load(values + i), high);
    float least = -largest(-low), most = largest(high);
    for (; i < count; ++i) least = std::min(least, values[i]), most = std::max(most, values[i]);
    return {least, most};
}

// Add the masses of values from the largest down, starting with `above`. Return the value at which the sum first reaches
// `target`, and how many values equal to it are needed. If even the sum of all values does not reach it, return the smallest. `values` is
// overwritten.
template <class Mass> Floor floor_of(float* values, int64_t count, double above, double target, Mass mass) {
    constexpr int64_t FEW = 48, BINS = 512;
    double bins[BINS];
    while (count > FEW) {
        const auto [low, high] = minmax_of(values, count);
        const float scale = (BINS - 1) / (high - low);
        if (!(scale > 0 && scale < std::numeric_limits<float>::max())) break;  // values are almost equal, or too far apart
        auto bin_of = [low = low, scale](float value) { return int64_t((value - low) * scale); };
        std::fill(bins, bins + BINS, 0.0);
        for (int64_t i = 0; i < count; ++i) bins[bin_of(values[i])] += mass(values[i]);
        int64_t bin = BINS - 1;
        while (bin > 0 && above + bins[bin] < target) above += bins[bin--];
        const int64_t before = count;
        count = std::remove_if(values, values + count, [&](float value) { return bin_of(value) != bin; }) - values;
        if (count == before) break;
    }
    std::sort(values, values + count, std::greater<float>());
    int64_t last = 0;
    while ((above += mass(values[last])) < target && last + 1 < count) ++last;
    int64_t ties = 1;
    while (ties <= last && values[last - ties] == values[last]) ++ties;
    return {values[last], ties};
}

}  // namespace
