// Rows of a table by their numbers: embeddings, and the rows of a step whose results are wanted.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "pool.h"

namespace {

// A number that the table does not have gives a row of NaN, which whoever looks at its logits reports.
void gather(Pool& pool, const void* table, int64_t entries, int64_t row_bytes, const int64_t* numbers, int64_t count, void* to) {
    const int64_t each = std::max<int64_t>((64 << 10) / row_bytes, 1);
    pool.run(int((count + each - 1) / each), [&](int item) {
        for (int64_t i = item * each; i < std::min((item + 1) * each, count); ++i) {
            char* own = static_cast<char*>(to) + i * row_bytes;
            if (numbers[i] < 0 || numbers[i] >= entries)
                std::memset(own, 0xff, row_bytes);
            else
                std::memcpy(own, static_cast<const char*>(table) + numbers[i] * row_bytes, row_bytes);
        }
    });
}

}  // namespace
