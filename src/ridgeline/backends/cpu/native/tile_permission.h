// The permission to use AMX tiles, which a process has to request from Linux (arch_prctl(2)): tiles are 8 KB of state, which
// signal frames contain too from then on. Threads and later children of the process have it too.
#pragma once

#include <atomic>
#include <cerrno>

#if defined __x86_64__ && defined __linux__ && !defined EMULATED_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#ifdef EMULATED_TILES

std::atomic<int> refusal_of_tests{0};
inline int tiles_refused() { return refusal_of_tests; }

#elif defined __x86_64__ && defined __linux__

// Request the permission once. Return 0, or the error number of the refusal.
inline int tiles_refused() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const int error = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? 0 : errno;
    return error;
}

#else

inline int tiles_refused() { return ENOSYS; }

#endif

}  // namespace
