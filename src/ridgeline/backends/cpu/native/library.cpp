// The C functions that Python calls. They run the kernels of the chosen instruction set on the pool of threads.
#include "kernels.h"
#include "pool.h"
#include "tile_permission.h"
#include "tiles.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include <pthread.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

struct Candidate {
    const Kernels* kernels;
    bool runs, tiles = false;  // tiles: whether the set also needs the system's permission for tiles
};

#ifdef __x86_64__
// These are all the extensions that setup.py lets the compiler use for a set. A virtual machine may hide any of those that
// its processor has.
const bool runs_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
const bool runs_avx512 = runs_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
const bool runs_avx512_bf16 = runs_avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
const bool runs_amx = runs_avx512_bf16 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
                      __builtin_cpu_supports("amx-int8");
#endif

// The instruction sets, best first, and whether this processor runs them.
const Candidate candidates[] = {
#ifdef EMULATED_TILES
#ifdef __x86_64__
    {&amx_emulated_avx512, runs_avx512_bf16, true},
#endif
    {&amx_emulated, true, true},
#elif defined __x86_64__
    {&amx, runs_amx, true},
    {&avx512_bf16, runs_avx512_bf16},
    {&avx512, runs_avx512},
    {&avx2, runs_avx2},
#endif
#if defined __aarch64__ && !defined EMULATED_TILES
    {&neon, true},
#else
    {&plain, true},
#endif
};

const Kernels* kernels = nullptr;
std::atomic<int> threads{1};  // set from any thread, even while another thread is in a call
Pool* pool = nullptr;
std::mutex calls;

// After a fork, the child has the pool's memory but not its threads.
void forget_pool() {
    pool = nullptr;
    new (&calls) std::mutex;  // another thread may have held it
}

// The pool of one call: that of the process, or, if another call is using that, the calling thread alone.
class CallPool {
  public:
    CallPool() : lock(calls, std::try_to_lock), alone(1) {
        const int wanted = threads;
        if (lock && (!pool || pool->wanted() != wanted)) {
            delete std::exchange(pool, nullptr);
            pool = new Pool(wanted);
        }
    }
    operator Pool&() { return lock ? *pool : alone; }

  private:
    std::unique_lock<std::mutex> lock;
    Pool alone;
};

// Run call(pool). Return 0, or 1 if the system refused memory; the results are incomplete then.
template <class Call> int refusable(Call&& call) {
    try {
        call(CallPool());
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace

// Choose the kernels of this name, or for "" the best ones that this processor runs. Return their name, or null if the
// processor does not run them.
EXPORTED const char* ridgeline_use(const char* name) {
    static const int once = pthread_atfork(nullptr, nullptr, forget_pool);
    (void)once;
    for (auto& [own, runs, tiles] : candidates)
        if (runs && (!*name || !std::strcmp(own->name, name)) && !(tiles && tiles_refused())) {
            kernels = own;
            return own->name;
        }
    return nullptr;
}

// Return the error number with which the system refused tiles that this processor has, or 0.
EXPORTED int ridgeline_tiles_refused() {
    for (auto& [own, runs, tiles] : candidates)
        if (runs && tiles) return tiles_refused();
    return 0;
}

#ifdef EMULATED_TILES
// Let the system refuse tiles with this error number, or permit them with 0.
EXPORTED void ridgeline_refuse_tiles(int error) { refusal_of_tests = error; }

// Call multiply_bytes for 64 rows. Kernels that use it need AVX-512.
EXPORTED void ridgeline_multiply_bytes(const int8_t* x, int64_t x_stride, const uint8_t* codes, int64_t count, int depth, int32_t* to) {
    const TilesInUse in_use(depth);
    (depth == 64 ? multiply_bytes<4, 64> : multiply_bytes<4, 32>)(x, x_stride, codes, count, reinterpret_cast<int32_t(*)[TILE_SIDE]>(to));
}
#endif

// Return the digest of the sources from which the library was compiled (kernel_sources.py).
EXPORTED const char* ridgeline_sources() { return SOURCES; }

// Set the number of threads of each later call, the calling thread included.
EXPORTED void ridgeline_threads(int count) { threads = count; }

EXPORTED int ridgeline_products(const Rows* x, int count, const Matrix* matrices, int out) {
    return refusable([&](Pool& pool) { kernels->products(pool, *x, count, matrices, DType(out)); });
}

EXPORTED int ridgeline_norms(const Rows* x, const void* y, int64_t y_stride, void* to, const void* weight, float eps,
                             int from_one) {
    return refusable([&](Pool& pool) { kernels->norms(pool, *x, y, y_stride, to, weight, eps, from_one); });
}

EXPORTED int ridgeline_gated_products(const Rows* x, const Matrix* gate, const Matrix* up, int activation) {
    return refusable([&](Pool& pool) { kernels->gated_products(pool, *x, *gate, *up, Gate{activation, 0, 0}); });
}

EXPORTED int ridgeline_route(const Rows* x, const Matrix* matrix, int logits, const Routing* rule, float* weights,
                             int64_t* picked) {
    return refusable([&](Pool& pool) { kernels->route(pool, *x, *matrix, DType(logits), *rule, weights, picked); });
}

EXPORTED int ridgeline_experts(const ExpertLayer* layer, const Rows* x, const Picks* picks, const void* onto,
                               int64_t onto_stride, void* to) {
    return refusable([&](Pool& pool) { kernels->experts(pool, *layer, *x, *picks, onto, onto_stride, to); });
}

EXPORTED int ridgeline_attend(const AttentionLayer* layer, const Sequences* sequences, const NewRows* rows, const Rows* q,
                              void* to) {
    return refusable([&](Pool& pool) { kernels->attend(pool, *layer, *sequences, *rows, *q, to); });
}

EXPORTED int ridgeline_rotate(int type, int64_t rows, const Heads* inputs, int count, const float* cos, const float* sin,
                              int64_t start, int64_t half) {
    return refusable([&](Pool& pool) { kernels->rotate(pool, DType(type), rows, inputs, count, cos, sin, start, half); });
}

EXPORTED int ridgeline_sample(Sampling* rows, int count, int64_t vocabulary) {
    return refusable([&](Pool& pool) { kernels->sample(pool, rows, count, vocabulary); });
}

EXPORTED int ridgeline_angles(const int64_t* positions, int64_t rows, const float* frequencies, int64_t half, float magnitude,
                              float* cos, float* sin) {
    return refusable([&](Pool& pool) { kernels->angles(pool, positions, rows, frequencies, half, magnitude, cos, sin); });
}

EXPORTED int ridgeline_gather(const void* table, int64_t entries, int64_t row_bytes, const int64_t* numbers, int64_t count,
                              void* to) {
    return refusable([&](Pool& pool) { kernels->gather(pool, table, entries, row_bytes, numbers, count, to); });
}

EXPORTED int ridgeline_gather_codes(const Matrix* table, int type, int64_t width, const int64_t* numbers, int64_t count, void* to) {
    return refusable([&](Pool& pool) { kernels->gather_codes(pool, *table, DType(type), width, numbers, count, to); });
}
