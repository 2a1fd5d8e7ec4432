// Matrices of codes: integers of 8 or 4 bits, or numbers of 8 bits (fp8). A group of inputs shares a scale. A code represents
// code * scale - zero * scale.
//
// Codes are widened for the product, to the type in which rows are multiplied (dots.h). For fp32, the order is that of packed
// bf16 rows: first the numbers at even indices, then those at odd ones. For bf16, it is their own order. A byte of 4-bit
// codes has the even one in its low half, so one load gives both halves of a register.
#pragma once

#include <type_traits>

#include "dots.h"
#include "kernels.h"
#include "scratch.h"

namespace {

// -- codes as numbers ------------------------------------------------------------------------------------------------------

// A Scaled is constructed from the scale of a group and the number to add. It converts one unit of codes into the numbers
// that they represent. Its scale is FACTOR times that of the matrix. A Halves does the same and rounds to bf16.

#ifdef BF16_DOTS
// Return two registers as bf16 numbers, those of `first` first. Subnormal numbers become 0.
inline U as_halves(F first, F second) {
    return reinterpret_cast<U>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(second), reinterpret_cast<__m512>(first)));
}
#endif

// Codes of a byte, of which 128 represents zero.
struct Bytes {
    static constexpr int BITS = 8;
    static constexpr float FACTOR = 1;
    struct Scaled {
        F scale, low;
        Scaled(F scale, F low) : scale(scale), low(low) {}
        TwoRegisters operator()(const uint8_t* codes) const {
            const I pairs = reinterpret_cast<I>(widened(reinterpret_cast<const uint16_t*>(codes)));
            return {__builtin_convertvector(pairs & 255, F) * scale + low, __builtin_convertvector(pairs >> 8, F) * scale + low};
        }
    };
#ifdef BF16_DOTS
    struct Halves : Scaled {
        using Scaled::Scaled, Scaled::scale, Scaled::low;
        U operator()(const uint8_t* codes) const {
            auto half = [&](const uint8_t* from) { return __builtin_convertvector(reinterpret_cast<I>(widened(from)), F) * scale + low; };
            return as_halves(half(codes), half(codes + LANES));
        }
    };
#endif
};

// Codes of half a byte.
struct HalfBytes {
    static constexpr int BITS = 4;
    static constexpr float FACTOR = 1;
    struct Scaled {
#if LANES == 16  // the numbers of all codes fit into a register, which serves as a lookup table
        F table;
        Scaled(F scale, F low) {
            for (int lane = 0; lane < LANES; ++lane) table[lane] = lane;
            table = table * scale + low;
        }
        TwoRegisters operator()(const uint8_t* codes) const {
            const U pairs = widened(codes);
            return {__builtin_shuffle(table, reinterpret_cast<I>(pairs)), __builtin_shuffle(table, reinterpret_cast<I>(pairs >> 4))};
        }
#else
        F scale, low;
        Scaled(F scale, F low) : scale(scale), low(low) {}
        TwoRegisters operator()(const uint8_t* codes) const {
            const I pairs = reinterpret_cast<I>(widened(codes));
            return {__builtin_convertvector(pairs & 15, F) * scale + low, __builtin_convertvector(pairs >> 4, F) * scale + low};
        }
#endif
    };
#ifdef BF16_DOTS
    struct Halves {
        __m512i table;  // in its lower half
        Halves(F scale, F low) {
            const auto numbers = reinterpret_cast<__m512>(Scaled(scale, low).table);
            table = _mm512_castsi256_si512(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(numbers)));
        }
        U operator()(const uint8_t* codes) const {
            const U pairs = widened(codes);
            const U places = (pairs | pairs << 12) & 0x000f000fu;
            return reinterpret_cast<U>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(places), table));
        }
    };
#endif
};

// e4m3 (arXiv:2209.05433). The four bits of the exponent, biased by 7, become the lowest of the eight of fp32, biased by 127.
// Subnormal numbers are right too. NaN, which weights do not contain, would become 480.
struct Fp8 {
    static constexpr int BITS = 8;
    static constexpr float FACTOR = 0x1p120f;
    struct Scaled {
        F scale;
        Scaled(F scale, F) : scale(scale) {}
        TwoRegisters operator()(const uint8_t* codes) const {
            const U pairs = widened(reinterpret_cast<const uint16_t*>(codes));
            return {placed(pairs << 24) * scale, placed(pairs << 16) * scale};
        }
    };
#ifdef BF16_DOTS
    struct Halves {
        F scale;
        Halves(F scale, F) : scale(scale) {}
        U operator()(const uint8_t* codes) const {
            auto half = [&](const uint8_t* from) { return placed(widened(from) << 24) * scale; };
            return as_halves(half(codes), half(codes + LANES));
        }
    };
#endif

  private:
    // Place bytes that are at the top of numbers: the sign stays there, and the rest moves below three free bits.
    static F placed(U up) { return from_bits(reinterpret_cast<U>(reinterpret_cast<I>(up) >> 4) & 0x87f00000u); }
};

template <class Coded, class Number> auto numbers_of() {
#ifdef BF16_DOTS
    if constexpr (std::is_same_v<Number, bf16>) return std::type_identity<typename Coded::Halves>{};
    else
#endif
        return std::type_identity<typename Coded::Scaled>{};
}
// The type that widens codes of this kind to numbers of a type.
template <class Coded, class Number> using NumbersOf = typename decltype(numbers_of<Coded, Number>())::type;

// -- scales ----------------------------------------------------------------------------------------------------------------

// Widen fp16 to fp32, like e4m3 above. Infinities and NaN, which scales do not contain, would become numbers.
inline F widened_half(const uint16_t* from) {
    const U u = widened(from);
    return from_bits((u & 0x8000u) << 16 | (u & 0x7fffu) << 13) * 0x1p112f;
}

inline F scales_at(const void* from, DType type) {
    switch (type) {
    case FP32: return load(static_cast<const float*>(from));
    case BF16: return load(static_cast<const bf16*>(from));
    default: return widened_half(static_cast<const uint16_t*>(from));
    }
}

// Widen `count` scales from index `first` on, times `factor`, and compute what is added to the numbers of each group. Both
// are fp32. Writes are of whole registers.
inline void widen_scales(const Codes& codes, int64_t first, int64_t count, float factor, float* to, float* low) {
    const int64_t bytes = codes.scale_bytes();
    const auto* scales = static_cast<const uint8_t*>(codes.scales) + first * bytes;
    const uint8_t* zeros = codes.zeros ? codes.zeros + first : nullptr;
    auto widen = [&](const void* scales, const uint8_t* zeros, float* to, float* low) {
        const F scale = scales_at(scales, codes.scale_type);
        const F zero = zeros ? __builtin_convertvector(reinterpret_cast<I>(widened(zeros)), F) : broadcast(codes.zero);
        store(to, scale * factor), store(low, -scale * zero);
    };
    int64_t g = 0;
    for (; g + LANES <= count; g += LANES) widen(scales + g * bytes, zeros ? zeros + g : nullptr, to + g, low + g);
    if (g < count) {
        float rest_of_scales[LANES] = {};
        uint8_t rest_of_zeros[LANES] = {};
        std::memcpy(rest_of_scales, scales + g * bytes, (count - g) * bytes);
        if (zeros) std::memcpy(rest_of_zeros, zeros + g, count - g);
        widen(rest_of_scales, zeros ? rest_of_zeros : nullptr, to + g, low + g);
    }
    if (codes.lows) std::memcpy(low, codes.lows + first, count * sizeof(float));
}

// The same for the scales of one output.
inline void widen_scales(const Codes& codes, int64_t output, float factor, float* to, float* low) {
    widen_scales(codes, output / codes.outputs * codes.groups, codes.groups, factor, to, low);
}

// -- rows ------------------------------------------------------------------------------------------------------------------

inline void put_unit(TwoRegisters unit, float* to) { store(to, unit.first), store(to + LANES, unit.second); }
inline void put_unit(U pairs, bf16* to) { std::memcpy(to, &pairs, sizeof(pairs)); }

// Return a unit whose first half is from `a` and the second from `b`.
inline TwoRegisters joined(TwoRegisters a, TwoRegisters b) {
    I upper;
    for (int lane = 0; lane < LANES; ++lane) upper[lane] = lane < LANES / 2 ? 0 : -1;
    return {where(upper, b.first, a.first), where(upper, b.second, a.second)};
}
inline U joined(U a, U b) {
    const TwoRegisters both = joined(TwoRegisters{from_bits(a), from_bits(a)}, {from_bits(b), from_bits(b)});
    return bits(both.first);
}

// Widen `count` codes, a whole number of units. first: the index in its row of the code at `codes`, where a block begins. A
// group is half a unit or a whole number of units.
template <class Coded, class Number>
inline void widen_codes(const uint8_t* codes, const float* scales, const float* low, int64_t group, int64_t first, int64_t count,
                        Number* to) {
    using Numbers = NumbersOf<Coded, Number>;
    int64_t g = first / group;
    if (group < UNIT) {
        for (int64_t i = 0; i < count; i += UNIT, g += 2) {
            const uint8_t* own = codes + i * Coded::BITS / 8;
            const Numbers a(broadcast(scales[g]), broadcast(low[g])), b(broadcast(scales[g + 1]), broadcast(low[g + 1]));
            put_unit(joined(a(own), b(own)), to + i);
        }
        return;
    }
    for (int64_t i = 0; i < count; ++g) {
        const Numbers numbers(broadcast(scales[g]), broadcast(low[g]));
        for (const int64_t end = std::min(count, (g + 1) * group - first); i < end; i += UNIT)
            put_unit(numbers(codes + i * Coded::BITS / 8), to + i);
    }
}

// Pack a row of fp32 in the order of packed bf16.
inline void pack_by_pairs(const float* from, int64_t inputs, float* to) {
    for (int64_t i = 0; i < padded(inputs); ++i) to[packed_place<bf16, float>(i)] = i < inputs ? from[i] : 0.0f;
}

}  // namespace
