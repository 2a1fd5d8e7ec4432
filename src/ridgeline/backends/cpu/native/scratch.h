#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace {

// Memory of a thread that lasts from call to call. `of` throws bad_alloc if the system refuses more memory, and then keeps
// what it has.
template <class Number> struct Scratch {
    Number* of(int64_t numbers) {
        if (numbers > size) {
            void* more = std::aligned_alloc(64, (numbers * sizeof(Number) + 63) / 64 * 64);
            if (!more) throw std::bad_alloc();
            held.reset(static_cast<Number*>(more));
            size = numbers;
        }
        return held.get();
    }
    struct Free {
        void operator()(Number* p) const { std::free(p); }
    };
    std::unique_ptr<Number, Free> held;
    int64_t size = 0;
};

}  // namespace
