// One uniform number for each (seed, position, choice), as in engine/sampling/uniform.py, by Philox4x32-10: J. Salmon, M.
// Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
#pragma once

#include <cstdint>

namespace {

// Return a multiple of 2^-53 in [0, 1).
inline double uniform(uint64_t seed, uint64_t position, uint64_t choice) {
    uint32_t c0 = uint32_t(position), c1 = uint32_t(position >> 32), c2 = uint32_t(choice), c3 = 0;
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = c0 * uint64_t(0xD2511F53), second = c2 * uint64_t(0xCD9E8D57);
        c0 = uint32_t(second >> 32) ^ c1 ^ k0, c1 = uint32_t(second);
        c2 = uint32_t(first >> 32) ^ c3 ^ k1, c3 = uint32_t(first);
        k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    return double(((uint64_t(c0) << 32) | c1) >> 11) * 0x1p-53;
}

}  // namespace
