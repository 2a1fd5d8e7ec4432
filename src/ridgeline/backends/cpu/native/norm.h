// Root-mean-square norms of rows, alone or after an addition. They match core/ops/norm.py in every rounding.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "lanes.h"
#include "pool.h"

namespace {

constexpr int64_t ITEM_NUMBERS = 16 << 10;  // numbers per item

// x += y if y is given; then to = x / sqrt(mean(x^2) + eps) * weight. With `from_one`, the factor is 1 + weight, and the
// product is not rounded before it.
template <class T>
void norm_row(T* x, const T* y, T* to, const T* weight, int64_t width, float eps, bool from_one) {
    F squares{};
    float rest = 0;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        F own = load(x + i);
        if (y) own = stored_as(x, own + load(y + i)), store(x + i, own);
        squares += own * own;
    }
    for (int64_t j = i; j < width; ++j) {
        float own = get(x + j);
        if (y) own = stored_as(x, own + get(y + j)), put(x + j, own);
        rest += own * own;
    }
    const float scale = 1.0f / std::sqrt((sum(squares) + rest) / float(width) + eps);
    for (i = 0; i + LANES <= width; i += LANES) {
        F own = load(x + i) * scale;
        store(to + i, from_one ? own * (load(weight + i) + 1.0f) : stored_as(x, own) * load(weight + i));
    }
    for (; i < width; ++i) {
        float own = get(x + i) * scale;
        put(to + i, from_one ? own * (get(weight + i) + 1.0f) : stored_as(x, own) * get(weight + i));
    }
}

template <class T>
void norms(Pool& pool, const Rows& x, const void* y, int64_t y_stride, void* to, const void* weight, float eps, bool from_one) {
    const int64_t each = std::max<int64_t>(ITEM_NUMBERS / x.width, 1);
    pool.run(int((x.count + each - 1) / each), [&](int item) {
        for (int64_t r = item * each; r < std::min((item + 1) * each, x.count); ++r) {
            T* own = static_cast<T*>(const_cast<void*>(x.at)) + r * x.stride;
            norm_row(own, y ? static_cast<const T*>(y) + r * y_stride : nullptr, static_cast<T*>(to) + r * x.width,
                     static_cast<const T*>(weight), x.width, eps, from_one);
        }
    });
}

}  // namespace
