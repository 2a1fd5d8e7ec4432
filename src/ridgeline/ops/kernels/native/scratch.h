#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace {

// Memory of a thread that lasts from call to call.
template <class Number> struct Scratch {
    Number* of(int64_t numbers) {
        if (numbers > size) {
            held.reset(static_cast<Number*>(std::aligned_alloc(64, (numbers * sizeof(Number) + 63) / 64 * 64)));
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
