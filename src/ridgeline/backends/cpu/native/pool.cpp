#include "pool.h"

#include <chrono>
#include <exception>
#include <new>

#if defined(__x86_64__)
#include <immintrin.h>
inline void relax() { _mm_pause(); }
#elif defined(__aarch64__)
// Empty the pipeline, which takes about as long as x86's pause. On a core with one hardware thread `yield` takes no time. A
// waiting thread would then read a line of memory that others write, as fast as it can.
inline void relax() { asm volatile("isb"); }
#else
inline void relax() { std::this_thread::yield(); }
#endif

namespace {

// How long a worker polls for the next call before it sleeps. Two calls of a step are some microseconds apart, or up to 100
// if the step is not recorded. A sleeping thread takes 50 us and more to wake.
constexpr auto LOOKOUT = std::chrono::microseconds(250);

}  // namespace

Pool::Pool(int wanted) : asked_for(wanted), shares(wanted > 1 ? wanted : 0) {
    try {
        for (int i = 1; i < wanted; ++i) workers.emplace_back([this, i] { work(i); });
    } catch (const std::exception&) {
        // The system limits threads or memory. Calls are cut for the threads that exist, and the results are the same.
    }
}

Pool::~Pool() {
    ending = true;
    call.fetch_add(1);
    call.notify_all();
    for (auto& worker : workers) worker.join();
}

void Pool::start(int items, Task what, void* with) {
    task = what, context = with;
    for (int64_t thread = 0, first = 0; thread < threads(); ++thread) {
        const int64_t end = int64_t(items) * (thread + 1) / threads();
        shares[thread].set(first, end);
        first = end;
    }
    open.store(true);
    call.fetch_add(1);
    call.notify_all();
    take(0);
    // A worker that is not inside by now finds no items. One that is inside is working on an item.
    open.store(false);
    while (inside.load() != 0) relax();
    if (refused.exchange(false)) throw std::bad_alloc();
}

void Pool::take(int thread) {
    try {
        for (int item; (item = next_of(thread)) >= 0;) task(context, item);
    } catch (const std::bad_alloc&) {
        refused.store(true);
        for (Share& share : shares) share.set(0, 0);  // the call fails, so the remaining items are dropped
    }
}

int Pool::next_of(int thread) {
    int item = shares[thread].first();
    for (int other = 1; item < 0 && other < threads(); ++other) item = shares[(thread + other) % threads()].last();
    return item;
}

void Pool::work(int thread) {
    for (uint32_t seen = 0;;) {
        auto until = std::chrono::steady_clock::now() + LOOKOUT;
        for (int turns = 0; call.load() == seen; ++turns) {
            relax();
            if (turns % 64 == 63 && std::chrono::steady_clock::now() > until) call.wait(seen);
        }
        seen = call.load();
        if (ending) return;
        inside.fetch_add(1);
        if (open.load()) take(thread);
        inside.fetch_sub(1);
    }
}
