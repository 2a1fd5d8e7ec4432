// Keys and values as pages store them: numbers of the type in which attention is computed, or codes of 8 bits.
#pragma once

#include <array>
#include <limits>
#include <type_traits>

#include "dots.h"
#include "kernels.h"

namespace {

// Bytes of which 128 represents zero, with a scale for each vector of a head.
struct Int8 {
    static constexpr bool SCALED = true;
    uint8_t code;
};
// e4m3 (arXiv:2209.05433), with one scale for the layer.
struct E4m3 {
    static constexpr bool SCALED = false;
    uint8_t code;
};

template <class Kept> constexpr bool is_coded = std::is_same_v<Kept, Int8> || std::is_same_v<Kept, E4m3>;
template <class Kept> constexpr bool is_scaled() {
    if constexpr (is_coded<Kept>) return Kept::SCALED;
    return false;
}

// -- codes as numbers -------------------------------------------------------------------------------------------------

// The numbers of codes before scaling, in units: in order, or first those at even indices, then those at odd ones. All of
// them are also bf16 numbers.

// A byte below the exponent of 2^23 is a number larger by 2^23. Eight bits up, below the exponent of 2^15, it is larger by
// 2^15.
inline F number_of(Int8, U code) { return from_bits(code | 0x4b000000u) - (0x1p23f + 128); }
inline TwoRegisters in_order(const Int8* from) {
    return {number_of(Int8{}, widened(&from->code)), number_of(Int8{}, widened(&from[LANES].code))};
}
inline TwoRegisters by_pairs(const Int8* from) {
    const U pairs = widened(reinterpret_cast<const uint16_t*>(from));
    return {number_of(Int8{}, pairs & 0xffu), from_bits((pairs & 0xff00u) | 0x47000000u) - (0x1p15f + 128)};
}

#if LANES == 16
// The bf16 numbers of the codes without their sign.
constexpr auto E4M3_NUMBERS = [] {
    std::array<bf16, 128> numbers{};
    for (int code = 0; code < 128; ++code) {
        // the bias of the exponent changes from 7 to 127
        const float normal = std::bit_cast<float>(uint32_t(code << 20) + 0x3c000000u);
        numbers[code] = std::bit_cast<uint32_t>(code < 8 ? code * 0x1p-9f : normal) >> 16;
    }
    numbers[127] = 0x7fc0;  // NaN
    return numbers;
}();

// Return 32 codes as bf16 numbers. One lookup reads two registers of the table.
inline U halves_of(const E4m3* from) {
    const auto part = [](int first) { return _mm512_loadu_si512(E4M3_NUMBERS.data() + first); };
    const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __m512i small = _mm512_permutex2var_epi16(part(0), codes, part(32));
    const __m512i large = _mm512_permutex2var_epi16(part(64), codes, part(96));
    const __m512i sizes = _mm512_mask_mov_epi16(small, _mm512_test_epi16_mask(codes, _mm512_set1_epi16(64)), large);
    return (reinterpret_cast<U>(codes) << 8 & 0x80008000u) | reinterpret_cast<U>(sizes);
}
inline TwoRegisters by_pairs(const E4m3* from) {
    const U pairs = halves_of(from);
    return {evens(pairs), odds(pairs)};
}
inline TwoRegisters in_order(const E4m3* from) {
    bf16 numbers[UNIT];
    const U pairs = halves_of(from);
    std::memcpy(numbers, &pairs, sizeof(pairs));
    return {load(numbers), load(numbers + LANES)};
}
#else
inline F number_of(E4m3, U code) {
    const U size = code & 0x7fu;
    // The bias of the exponent changes from 7 to 127. Subnormal numbers, of exponent 0, are read with a leading 1, which is
    // then subtracted. Numbers that are subnormal in fp32 would be slow.
    const F normal = from_bits((size << 20) + 0x3c000000u);
    const F magnitude = where(size < 8u, normal + normal - 0x1p-6f, normal);
    const F whole = where(size == 0x7fu, broadcast(std::numeric_limits<float>::quiet_NaN()), magnitude);
    return from_bits(bits(whole) | (code & 0x80u) << 24);
}
inline TwoRegisters in_order(const E4m3* from) {
    return {number_of(E4m3{}, widened(&from->code)), number_of(E4m3{}, widened(&from[LANES].code))};
}
inline TwoRegisters by_pairs(const E4m3* from) {
    const U pairs = widened(reinterpret_cast<const uint16_t*>(from));
    return {number_of(E4m3{}, pairs & 0xffu), number_of(E4m3{}, pairs >> 8)};
}
#endif

// Return the upper halves of two registers, which are bf16 numbers. Those of the first are at even indices.
inline U halves(F even, F odd) { return bits(even) >> 16 | (bits(odd) & 0xffff0000u); }

// Pack a key of codes as `pack` (dots.h) packs one of type Stored, without scaling.
template <class Stored, class Kept, class Number> inline void pack_codes(const Kept* from, int64_t dim, Number* to) {
    auto unit = [](const Kept* from, Number* to) {
        if constexpr (std::is_same_v<Number, bf16>) {
            const TwoRegisters own = by_pairs(from);
            const U pairs = halves(own.first, own.second);
            std::memcpy(to, &pairs, sizeof(pairs));
        } else {
            const TwoRegisters own = std::is_same_v<Stored, float> ? in_order(from) : by_pairs(from);
            store(to, own.first), store(to + LANES, own.second);
        }
    };
    int64_t i = 0;
    for (; i + UNIT <= dim; i += UNIT) unit(from + i, to + i);
    if (i == dim) return;
    Kept rest[UNIT] = {};
    std::memcpy(rest, from + i, dim - i);
    unit(rest, to + i);
}

// Keys of codes, widened while they are read. It adds the terms that Singles adds for packed keys, in the same order.
template <class Stored, class Kept> struct WideningCodes : Widening {
    static TwoRegisters w_at(const Kept* from) { return std::is_same_v<Stored, float> ? in_order(from) : by_pairs(from); }
};

// -- numbers as codes, as in core/ops/kv_quantisation.py --------------------------------------------------------------------------

inline uint8_t int8_of(float multiple) { return uint8_t(nearest(std::min(std::max(multiple, -127.0f), 127.0f)) + 128); }

inline uint8_t e4m3_of(float x) {
    const float size = std::min(std::abs(x), 448.0f);
    const uint32_t u = std::bit_cast<uint32_t>(size);
    const uint32_t normal = ((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - (120u << 3);
    const uint32_t subnormal = nearest(size * 512.0f);
    const uint32_t magnitude = x != x ? 0x7fu : size < 0x1p-6f ? subnormal : normal;
    return uint8_t(magnitude | (std::bit_cast<uint32_t>(x) >> 24 & 0x80u));
}

// Write a vector of a head as codes, and its scale to `scale`. wide: memory for `dim` numbers.
template <class Stored> inline void write_codes(const Stored* from, int64_t dim, float* wide, float, Int8* to, bf16* scale) {
    float most = 0, finite = 0;
    for (int64_t i = 0; i < dim; ++i) wide[i] = get(from + i);
    for (int64_t i = 0; i < dim; ++i) most = std::max(most, std::abs(wide[i]));
    for (int64_t i = 0; i < dim; ++i) finite += wide[i] - wide[i];
    *scale = narrow(finite == 0 ? most / 127.0f : std::numeric_limits<float>::quiet_NaN());
    const float own = widen(*scale);
    if (own > 0)
        for (int64_t i = 0; i < dim; ++i) to[i].code = int8_of(wide[i] / own);
    else
        std::memset(to, 128, dim);
}
template <class Stored> inline void write_codes(const Stored* from, int64_t dim, float* wide, float by, E4m3* to, bf16*) {
    for (int64_t i = 0; i < dim; ++i) wide[i] = get(from + i) / by;
    for (int64_t i = 0; i < dim; ++i) to[i].code = e4m3_of(wide[i]);
}

}  // namespace
