// Codes of 4 bits for processors that multiply bf16, one cache line at a time: one load has 128 codes.
//
// The k-th unit of a line consists of the k-th of each four codes. A shift moves them to the lowest bits of 16-bit lanes. The
// bits above hold the group. The numbers of all codes of four groups fit into two registers, which serve as a lookup table.
// Rows of x are packed in the same order. What remains of a row after its last whole line is processed by units
// (quantised.h).
#pragma once

#include <array>

#include "quantised.h"

namespace {

constexpr int LINE_UNITS = 4;
constexpr int64_t LINE = LINE_UNITS * UNIT, LINE_BYTES = LINE / 2;

// Return the index within a packed line of the number at index `place` of the line.
inline int64_t place_in_line(int64_t place) { return place % LINE_UNITS * UNIT + place / LINE_UNITS; }

#ifdef BF16_DOTS

// The groups of the units of a line, line after line.
class LineGroups {
  public:
    // first: the index of a line's first number in its row. A group is a whole number of units.
    LineGroups(int64_t size, int64_t first) : size(size), number(first / size), place(first - number * size) { next(); }
    void next() {
        for (int64_t& own : of) {
            own = number;
            place += UNIT;
            if (place == size) place = 0, ++number;
        }
    }

    int64_t of[LINE_UNITS];

  private:
    int64_t size, number, place;
};

// The numbers of a line of codes, rounded to bf16. WHOLE: all of them belong to one group.
template <bool WHOLE> class Nibbles {
  public:
    Nibbles(const uint8_t* from, const float* scales, const float* low, const LineGroups& groups) {
        auto numbers = [&](int k) {
            return HalfBytes::Scaled(broadcast(scales[groups.of[k]]), broadcast(low[groups.of[k]])).table;
        };
        first = reinterpret_cast<__m512i>(as_halves(numbers(0), numbers(WHOLE ? 0 : 1)));
        second = WHOLE ? first : reinterpret_cast<__m512i>(as_halves(numbers(2), numbers(3)));
        std::memcpy(&codes, from, sizeof(codes));
    }
    U unit(int k) const {
        constexpr U groups = {0,        0,        0,        0,        0x100010, 0x100010, 0x100010, 0x100010,
                              0x200020, 0x200020, 0x200020, 0x200020, 0x300030, 0x300030, 0x300030, 0x300030};
        const U places = ((codes >> 4 * k) & 0x000f000fu) | groups;
        return reinterpret_cast<U>(_mm512_permutex2var_epi16(first, reinterpret_cast<__m512i>(places), second));
    }

  private:
    U codes;
    __m512i first, second;
};

// Pack four units of numbers in the order of a line. `to` may be `from`.
inline void pack_line(const bf16* from, bf16* to) {
    std::array<bf16, UNIT> fourths;  // of two units, twice
    for (int i = 0; i < UNIT; ++i) fourths[i] = 4 * (i % (UNIT / 2));
    __m512i units[LINE_UNITS];
    for (int k = 0; k < LINE_UNITS; ++k) units[k] = _mm512_loadu_si512(from + k * UNIT);
    for (int k = 0; k < LINE_UNITS; ++k) {
        const __m512i places = _mm512_add_epi16(_mm512_loadu_si512(fourths.data()), _mm512_set1_epi16(short(k)));
        const __m512i lower = _mm512_permutex2var_epi16(units[0], places, units[1]);
        const __m512i upper = _mm512_permutex2var_epi16(units[2], places, units[3]);
        _mm512_storeu_si512(to + k * UNIT, _mm512_mask_mov_epi16(lower, 0xffff0000u, upper));
    }
}

#endif

}  // namespace
