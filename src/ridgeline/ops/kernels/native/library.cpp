// What Python calls: plain C functions over the kernels of the instruction set that was chosen, and the pool of threads.
#include "kernels.h"
#include "pool.h"

#include <cstring>
#include <memory>
#include <mutex>

#include <pthread.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

struct Candidate {
    const Kernels* kernels;
    bool runs;
};

// From the best to the plainest, and whether this processor runs them.
Candidate candidates[] = {
#ifdef __x86_64__
    {&avx512_bf16, __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl")},
    {&avx512, __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")},
    {&avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#endif
    {&plain, true},
};

const Kernels* kernels = nullptr;
int threads = 1;
Pool* pool = nullptr;
std::mutex calls;

// A child of a fork has the pool's memory without its threads.
void forget_pool() { pool = nullptr, new (&calls) std::mutex; }

// A pool for this call: everybody's, or, while another call has that, the caller alone.
class Turn {
  public:
    Turn() : lock(calls, std::try_to_lock), alone(1) {
        if (lock && (!pool || pool->threads() != threads)) {
            delete pool;
            pool = new Pool(threads);
        }
    }
    operator Pool&() { return lock ? *pool : alone; }

  private:
    std::unique_lock<std::mutex> lock;
    Pool alone;
};

}  // namespace

// The kernels of this name, or, for "", the best that this processor runs; their name, or null where it does not.
EXPORTED const char* ridgeline_use(const char* name) {
    static const int once = pthread_atfork(nullptr, nullptr, forget_pool);
    (void)once;
    for (auto& [own, runs] : candidates)
        if (runs && (!*name || !std::strcmp(own->name, name))) return kernels = own, own->name;
    return nullptr;
}

// How many threads a call has from now on, the caller's included.
EXPORTED void ridgeline_threads(int count) { threads = count; }

EXPORTED void ridgeline_products(const Rows* x, int count, const Matrix* matrices, int out) {
    kernels->products(Turn(), *x, count, matrices, Number(out));
}

EXPORTED void ridgeline_norms(const Rows* x, const void* y, int64_t y_stride, void* to, const void* weight, float eps,
                              int from_one) {
    kernels->norms(Turn(), *x, y, y_stride, to, weight, eps, from_one);
}

EXPORTED void ridgeline_gated_products(const Rows* x, const Matrix* gate, const Matrix* up, int activation) {
    kernels->gated_products(Turn(), *x, *gate, *up, activation);
}

EXPORTED void ridgeline_attend(const AttentionLayer* layer, const Sequences* sequences, const NewRows* rows, const Rows* q,
                               void* to) {
    kernels->attend(Turn(), *layer, *sequences, *rows, *q, to);
}

EXPORTED void ridgeline_rotate(int type, int64_t rows, const Heads* lots, int count, const float* cos, const float* sin,
                               int64_t start, int64_t half) {
    kernels->rotate(Turn(), Number(type), rows, lots, count, cos, sin, start, half);
}

EXPORTED void ridgeline_sample(Sampling* rows, int count, int64_t vocabulary) {
    kernels->sample(Turn(), rows, count, vocabulary);
}

EXPORTED void ridgeline_angles(const int64_t* positions, int64_t rows, const float* frequencies, int64_t half, float magnitude,
                               float* cos, float* sin) {
    kernels->angles(Turn(), positions, rows, frequencies, half, magnitude, cos, sin);
}

EXPORTED void ridgeline_gather(const void* table, int64_t entries, int64_t row_bytes, const int64_t* numbers, int64_t count,
                               void* to) {
    kernels->gather(Turn(), table, entries, row_bytes, numbers, count, to);
}
