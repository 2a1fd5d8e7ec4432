// Threads for the kernels: a call is cut into items, of which each thread has a share; who is through with its own takes of the
// others', so that a thread that comes late, or whose core somebody else has, holds nobody up but for the item in its hands.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

class Pool {
  public:
    // wanted: threads of a call, its caller's included. Where the system starts no more of them, there are fewer.
    explicit Pool(int wanted);
    ~Pool();
    int threads() const { return int(workers.size()) + 1; }
    int wanted() const { return asked_for; }
    Pool(const Pool&) = delete;

    // each(item) for every item, on any thread and in any order. One call at a time. Throws bad_alloc once nobody works any
    // more, if the system refused memory to one of them.
    template <class Each> void run(int items, Each&& each) {
        if (workers.empty() || items < 2) {
            for (int item = 0; item < items; ++item) each(item);
            return;
        }
        start(items, [](void* context, int item) { (*static_cast<Each*>(context))(item); }, &each);
    }

  private:
    using Task = void (*)(void* context, int item);

    // The items of a call that a thread takes first. They are neighbours: what it fetched ahead is its own, and the processor
    // foresees what comes next. Who has none left takes the others' last ones. Both ends are one number, so that no two threads
    // take the same item.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};

        void set(uint64_t first, uint64_t end) { left.store(first << 32 | end); }
        // An item, or -1.
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
    alignas(64) std::atomic<uint32_t> call{0};  // counts calls: what sleeping workers wait on
    alignas(64) std::atomic<int> inside{0};     // workers that may still touch this call
    std::atomic<bool> open{false}, ending{false}, refused{false};
};
