// Rows of a table by their indices: embeddings, and the rows of a step whose results are needed.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "pool.h"
#include "quantised.h"

namespace {

// An index outside the table gives a row of NaN. The check of the logits reports it.
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

// A row of interleaved codes (interleaved.h) with its scales and zeros, in the layout of other codes.
struct GatheredRow {
    const uint8_t* codes;
    Codes own;

    GatheredRow(const Matrix& table, int64_t number) : codes(static_cast<const uint8_t*>(table.weight)), own(*table.codes) {
        if (!own.interleaved) {
            codes += number * table.weight_stride;
            return;
        }
        thread_local Scratch<uint8_t> scratch;
        constexpr int64_t SIDE_BY_SIDE = 16, PIECE = 4;
        const int64_t panel = number / SIDE_BY_SIDE * SIDE_BY_SIDE, lane = number - panel;
        const int64_t bytes = table.weight_stride, scale_bytes = own.scale_bytes(), groups = own.groups;
        uint8_t *codes_to = scratch.of(bytes + groups * (scale_bytes + 1)), *scales_to = codes_to + bytes, *zeros_to = scales_to + groups * scale_bytes;
        auto take = [&](const void* from, int64_t row, int64_t piece, uint8_t* to) {
            const auto* own = static_cast<const uint8_t*>(from) + panel * row + lane * piece;
            for (int64_t i = 0; i < row; i += piece) std::memcpy(to + i, own + i * SIDE_BY_SIDE, piece);
        };
        take(table.weight, bytes, PIECE, codes_to);
        take(own.scales, groups * scale_bytes, scale_bytes, scales_to);
        if (own.zeros) take(own.zeros, groups, 1, zeros_to);
        codes = codes_to, own.scales = scales_to, own.zeros = own.zeros ? zeros_to : nullptr;
    }
    // Return the output whose scales the row has in `own`.
    int64_t output(int64_t number) const { return own.interleaved ? 0 : number; }
};

// Gather rows of a table of codes, widened to the number type of the model.
template <class Stored, class Coded>
void gather_codes(Pool& pool, const Matrix& table, int64_t width, const int64_t* numbers, int64_t count, Stored* to) {
    pool.run(int(count), [&](int item) {
        Stored* own = to + item * width;
        const int64_t number = numbers[item];
        if (number < 0 || number >= table.outputs) {
            std::memset(own, 0xff, width * sizeof(Stored));
            return;
        }
        thread_local Scratch<float> scratch;
        const int64_t room = (table.codes->groups + LANES - 1) / LANES * LANES;
        float* scales = scratch.of(2 * room + padded(width));
        float *low = scales + room, *row = low + room;
        const GatheredRow gathered(table, number);
        widen_scales(gathered.own, gathered.output(number), Coded::FACTOR, scales, low);
        widen_codes<Coded>(gathered.codes, scales, low, table.codes->group, 0, padded(width), row);
        for (int64_t i = 0; i < width; ++i) put(own + i, row[packed_place<bf16, float>(i)]);
    });
}

}  // namespace
