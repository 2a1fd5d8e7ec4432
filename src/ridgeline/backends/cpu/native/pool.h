// Threads for the kernels. A call is cut into items, and each thread has a share of them. A thread that has finished its
// share takes items of the others. So a thread that starts late, or whose core is busy with another process, only delays the
// item that it is working on.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

class Pool {
  public:
    // wanted: the number of threads of a call, the calling thread included. If the system starts fewer threads, there are
    // fewer.
    explicit Pool(int wanted);
    ~Pool();
    int threads() const { return int(workers.size()) + 1; }
    int wanted() const { return asked_for; }
    Pool(const Pool&) = delete;

    // Call each(item) for every item, on any thread and in any order. Only one call may run at a time. If the system refuses
    // memory to a thread, throws bad_alloc after all threads have stopped.
    template <class Each> void run(int items, Each&& each) {
        if (workers.empty() || items < 2) {
            for (int item = 0; item < items; ++item) each(item);
            return;
        }
        start(items, [](void* context, int item) { (*static_cast<Each*>(context))(item); }, &each);
    }

  private:
    using Task = void (*)(void* context, int item);

    // The items of a call that a thread takes first. They are neighbours: what the thread prefetched is for itself, and the
    // processor's own prefetching works. A thread without items takes the last ones of others. Both ends are in one number,
    // so no two threads take the same item.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};

        void set(uint64_t first, uint64_t end) { left.store(first << 32 | end); }
        // Take an item, or return -1.
        int first() {
            for (uint64_t now = left.load(); now >> 32 < uint32_t(now);)
                if (left.compare_exchange_weak(now, now + (uint64_t(1) << 32))) return int(now >> 32);
            return -1;
        }
        int last() {
            for (uint64_t now = left.load(); now >> 32 < uint32_t(now);)
                if (left.compare_exchange_weak(now, now - 1)) return int(uint32_t(now) - 1);
            return -1;
        }
    };

    void start(int items, Task task, void* context);
    void work(int thread);
    void take(int thread);
    int next_of(int thread);

    const int asked_for;
    std::vector<std::thread> workers;
    Task task = nullptr;
    void* context = nullptr;
    std::vector<Share> shares;
    alignas(64) std::atomic<uint32_t> call{0};  // the number of calls so far; sleeping workers wait for it to change
    alignas(64) std::atomic<int> inside{0};     // workers that may still touch this call
    std::atomic<bool> open{false}, ending{false}, refused{false};
};
