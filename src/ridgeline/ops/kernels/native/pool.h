// Threads for the kernels: a call is cut into items, which whoever is free takes, so that a thread that comes late, or
// whose core somebody else has, holds nobody up but for the item in its hands.
#pragma once

#include <atomic>
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

    void start(int items, Task task, void* context);
    void work();
    void take();

    const int asked_for;
    std::vector<std::thread> workers;
    Task task = nullptr;
    void* context = nullptr;
    int items = 0;
    alignas(64) std::atomic<uint32_t> call{0};  // counts calls: what sleeping workers wait on
    alignas(64) std::atomic<int> next{0};       // the first item that nobody has taken
    alignas(64) std::atomic<int> inside{0};     // workers that may still touch this call
    std::atomic<bool> open{false}, ending{false}, refused{false};
};
