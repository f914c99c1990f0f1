// Runs the threads of a CUDA block as fibers on the CPU, one at a time.
//
// A fiber runs until it meets the others: at a barrier or a warp's vote or shuffle. Which fiber runs next is
// drawn at random, so that a missing barrier shows as a wrong answer. A meeting that cannot happen, because
// a thread it needs has ended or waits elsewhere, ends the launch with an error.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static  // one block runs at a time

struct Dim {
    unsigned x;
};
Dim threadIdx, blockIdx{0}, blockDim, gridDim{1};

namespace fibers {

enum Place { READY, BARRIER, WARP_SYNC, BALLOT, SHUFFLE, ENDED };

struct Fiber {
    ucontext_t context;
    Place place = READY;
    int posted = 0, step = 0;
    unsigned received = 0;
    std::vector<char> stack = std::vector<char>(32 << 10);
};

std::vector<Fiber> all;
ucontext_t scheduler;
std::function<void()> body;

void entry() {
    body();
    Fiber& self = all[threadIdx.x];
    self.place = ENDED;
    swapcontext(&self.context, &scheduler);
}

__attribute__((noinline)) unsigned meet(Place place, int posted, int step = 0) {
    Fiber& self = all[threadIdx.x];
    self.place = place, self.posted = posted, self.step = step;
    swapcontext(&self.context, &scheduler);
    return all[threadIdx.x].received;
}

// Let the fibers first .. last go on if all of them wait at the same place.
bool release(size_t first, size_t last) {
    const Place place = all[first].place;
    unsigned votes = 0;
    for (size_t i = first; i < last; i++) {
        if (all[i].place != place) return false;
        if (place == BALLOT) votes |= unsigned(all[i].posted != 0) << (i - first);
    }
    for (size_t i = first; i < last; i++) {
        const size_t step = all[i].step;
        all[i].received = place != SHUFFLE ? votes : all[i - first >= step ? i - step : i].posted;
    }
    for (size_t i = first; i < last; i++) all[i].place = READY;
    return true;
}

bool release_any() {
    const size_t n = all.size();
    bool released = false;
    for (size_t first = 0; first < n; first += 32) {
        const Place place = all[first].place;
        if (place == WARP_SYNC || place == BALLOT || place == SHUFFLE) released |= release(first, first + 32);
    }
    return released || (all[0].place == BARRIER && release(0, n));
}

// Returns false if threads wait for each other in vain.
bool launch(unsigned n_threads, unsigned seed, std::function<void()> kernel) {
    std::mt19937 random(seed);
    blockDim.x = n_threads, body = kernel;
    all = std::vector<Fiber>(n_threads);
    for (Fiber& fiber : all) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, entry, 0);
    }
    std::vector<unsigned> ready;
    for (;;) {
        for (unsigned i = 0; i < n_threads; i++)
            if (all[i].place == READY) ready.push_back(i);
        if (ready.empty()) return std::all_of(all.begin(), all.end(), [](Fiber& f) { return f.place == ENDED; });
        // One warp runs on before the others move: the unevenness in which a missing barrier shows.
        const unsigned warp = ready[random() % ready.size()] / 32;
        std::shuffle(ready.begin(), ready.end(), random);
        for (unsigned i : ready) {
            if (i / 32 != warp) continue;
            threadIdx.x = i;
            swapcontext(&scheduler, &all[i].context);
        }
        ready.clear();
        release_any();
    }
}

}  // namespace fibers

inline void __syncthreads() { fibers::meet(fibers::BARRIER, 0); }
inline void __syncwarp() { fibers::meet(fibers::WARP_SYNC, 0); }
inline unsigned __ballot_sync(unsigned, int value) { return fibers::meet(fibers::BALLOT, value); }
inline int __shfl_up_sync(unsigned, int value, int step) { return fibers::meet(fibers::SHUFFLE, value, step); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
