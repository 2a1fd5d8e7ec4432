// Rotary position embedding (Su et al., arXiv:2104.09864). It computes in fp32 for every storage type of heads.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "lanes.h"
#include "pool.h"

namespace {

// Rotate entries i and i + half of a head, counted from `start`, by the angle of i. The other entries are copied.
template <class Stored>
inline void rotate_head(const Stored* from, Stored* to, int64_t dim, const float* cos, const float* sin, int64_t start,
                        int64_t half) {
    const Stored *first = from + start, *second = first + half;
    Stored *to_first = to + start, *to_second = to_first + half;
    std::copy(from, first, to);
    std::copy(second + half, from + dim, to_second + half);
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        F a = load(first + i), b = load(second + i), c = load(cos + i), s = load(sin + i);
        store(to_first + i, a * c - b * s), store(to_second + i, b * c + a * s);
    }
    for (; i < half; ++i) {
        float a = get(first + i), b = get(second + i), c = cos[i], s = sin[i];
        put(to_first + i, a * c - b * s), put(to_second + i, b * c + a * s);
    }
}

template <class Stored>
void rotate(Pool& pool, int64_t rows, const Heads* inputs, int count, const float* cos, const float* sin, int64_t start,
            int64_t half) {
    constexpr int64_t ROWS_AN_ITEM = 8;
    pool.run(int((rows + ROWS_AN_ITEM - 1) / ROWS_AN_ITEM), [&](int item) {
        const int64_t end = std::min(rows, (item + 1) * ROWS_AN_ITEM);
        for (int64_t row = item * ROWS_AN_ITEM; row < end; ++row)
            for (const Heads* input = inputs; input < inputs + count; ++input)
                for (int64_t head = 0; head < input->heads; ++head)
                    rotate_head(static_cast<const Stored*>(input->at) + row * input->stride + head * input->dim,
                                static_cast<Stored*>(input->to) + (row * input->heads + head) * input->dim, input->dim,
                                cos + row * half, sin + row * half, start, half);
    });
}

// Compute cos and sin of position x frequency, times `magnitude`. Both are [rows, half].
void angles(Pool& pool, const int64_t* positions, int64_t rows, const float* frequencies, int64_t half, float magnitude,
            float* cos, float* sin) {
    constexpr int64_t ROWS_AN_ITEM = 16;
    pool.run(int((rows + ROWS_AN_ITEM - 1) / ROWS_AN_ITEM), [&](int item) {
        for (int64_t row = item * ROWS_AN_ITEM; row < std::min(rows, (item + 1) * ROWS_AN_ITEM); ++row)
            for (int64_t i = 0; i < half; ++i) {
                const float angle = float(positions[row]) * frequencies[i];
                cos[row * half + i] = std::cos(angle) * magnitude, sin[row * half + i] = std::sin(angle) * magnitude;
            }
    });
}

}  // namespace
