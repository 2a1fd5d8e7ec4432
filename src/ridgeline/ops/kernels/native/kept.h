// Keys and values as they lie in pages: numbers of the type that attention is computed in, or codes of 8 bits.
#pragma once

#include <limits>
#include <type_traits>

#include "dots.h"
#include "kernels.h"

namespace {

// Bytes of which 128 stands for zero, with a scale for each vector of a head.
struct Int8 {
    static constexpr bool SCALED = true;
    uint8_t code;
};
// e4m3 (arXiv:2209.05433), with a scale of the layer.
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

// What codes stand for before they are scaled, each in the lowest byte of a lane. All are bf16 numbers too.
inline F numbers_of(Int8, U codes) { return __builtin_convertvector(reinterpret_cast<I>(codes), F) - 128.0f; }
inline F numbers_of(E4m3, U codes) {
    const U size = codes & 0x7fu;
    // The exponent, biased by 7, becomes one that is biased by 127. Subnormal numbers, of exponent 0, are read as
    // if they had a leading 1, which is taken off: numbers subnormal in fp32 too would be slow.
    const F normal = from_bits((size << 20) + 0x3c000000u);
    const F magnitude = where(size < 8u, normal + normal - 0x1p-6f, normal);
    const F whole = where(size == 0x7fu, broadcast(std::numeric_limits<float>::quiet_NaN()), magnitude);
    return from_bits(bits(whole) | (codes & 0x80u) << 24);
}

// A unit of them in their order, or the numbers of even places, then those of odd ones.
template <class Kept> inline TwoRegisters in_order(const Kept* from) {
    const auto* codes = reinterpret_cast<const uint8_t*>(from);
    return {numbers_of(Kept{}, widened(codes)), numbers_of(Kept{}, widened(codes + LANES))};
}
template <class Kept> inline TwoRegisters by_pairs(const Kept* from) {
    const U pairs = widened(reinterpret_cast<const uint16_t*>(from));
    return {numbers_of(Kept{}, pairs & 0xffu), numbers_of(Kept{}, pairs >> 8)};
}
// The upper halves of two registers, which are bf16 numbers: those of the first in even places.
inline U halves(F even, F odd) { return bits(even) >> 16 | (bits(odd) & 0xffff0000u); }

// A key as `pack` (dots.h) packs one of type Stored, not scaled yet.
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

// -- numbers as codes, as ops/kv_codes.py has them --------------------------------------------------------------------

inline uint8_t int8_of(float multiple) { return uint8_t(nearest(std::min(std::max(multiple, -127.0f), 127.0f)) + 128); }

inline uint8_t e4m3_of(float x) {
    const float size = std::min(std::abs(x), 448.0f);
    const uint32_t u = std::bit_cast<uint32_t>(size);
    const uint32_t normal = ((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - (120u << 3);
    const uint32_t subnormal = nearest(size * 512.0f);
    const uint32_t magnitude = x != x ? 0x7fu : size < 0x1p-6f ? subnormal : normal;
    return uint8_t(magnitude | (std::bit_cast<uint32_t>(x) >> 24 & 0x80u));
}

// A vector of a head into codes, and its scale to where that goes. wide: room for `dim` numbers.
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
