#include "shim.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

Dimensions gridDim, blockDim, blockIdx, threadIdx;

namespace shim {

enum Order { forward, reversed, random };

struct Fiber {
    ucontext_t context;
    State state;
    int line;      // of the barrier or shuffle it waits at
    int shuffles;  // how many it has made
};

constexpr unsigned warp_size = 32;
constexpr unsigned most_threads = 1024, stack_bytes = 32768;
static std::vector<Fiber> fibers;
static char *const stacks = (char *)std::malloc(most_threads * stack_bytes);  // kept: clearing them takes longer than running
static ucontext_t scheduler;
static double offers[2][most_threads];
static void (*body)(void **);
static void **values;
static std::string failure;

void wait(State state, int line)
{
    Fiber &fiber = fibers[threadIdx.x];
    fiber.state = state;
    fiber.line = line;
    swapcontext(&fiber.context, &scheduler);
}

// Two sets of places in turn: a lane that is ahead can be one shuffle ahead, and not two.
double *deposits(unsigned mask, int line)
{
    if (mask != 0xffffffffu && failure.empty())
        failure = "line " + std::to_string(line) + ": a shuffle of less than a warp";
    return offers[fibers[threadIdx.x].shuffles++ & 1] + threadIdx.x / warp_size * warp_size;
}

static void live()  // a fiber is used again for the next block
{
    for (;;) {
        body(values);
        wait(finished, 0);
    }
}

// True if fibers `first` to `last` all wait at the same place, and then lets them go on.
static bool release(unsigned first, unsigned last, State state)
{
    for (unsigned t = first; t < last; ++t)
        if (fibers[t].state != state || fibers[t].line != fibers[first].line)
            return false;
    for (unsigned t = first; t < last; ++t)
        fibers[t].state = ready;
    return true;
}

static std::string where_they_are()
{
    const char *names[] = {"ready", "at the barrier", "at the shuffle", "finished"};
    std::string text = "threads wait for each other in vain:";
    for (unsigned t = 0; t < fibers.size(); ++t)
        if (t == 0 || fibers[t].state != fibers[t - 1].state || fibers[t].line != fibers[t - 1].line)
            text += " [" + std::to_string(t) + "...] " + names[fibers[t].state] + " of line " + std::to_string(fibers[t].line);
    return text;
}

static void arrange(std::vector<unsigned> &numbers, Order order, std::mt19937 &random_numbers)
{
    if (order == reversed)
        std::reverse(numbers.begin(), numbers.end());
    if (order == random)
        std::shuffle(numbers.begin(), numbers.end(), random_numbers);
}

static void run_block(Order order, std::mt19937 &random_numbers)
{
    const unsigned threads = fibers.size(), warps = threads / warp_size;
    std::vector<unsigned> sequence(threads);
    for (unsigned t = 0; t < threads; ++t) {
        fibers[t].state = ready;
        sequence[t] = t;
    }
    arrange(sequence, order, random_numbers);
    // Warps drift apart on a GPU. In random order some stand still until the others can get no further without them:
    // that is how a place is written again before a late warp has read it.
    std::vector<bool> still(warps, false);
    for (;;) {
        bool moved = false, held_back = false;
        for (unsigned t : sequence) {
            if (fibers[t].state != ready)
                continue;
            if (still[t / warp_size]) {
                held_back = true;
                continue;
            }
            moved = true;
            threadIdx = {t, 0, 0};
            swapcontext(&scheduler, &fibers[t].context);
        }
        if (!failure.empty())
            return;
        for (unsigned w = 0; w < warps; ++w)
            moved |= release(w * warp_size, (w + 1) * warp_size, at_shuffle);
        const bool together = release(0, threads, at_barrier);
        if (!moved && !held_back && !together) {
            if (!std::all_of(fibers.begin(), fibers.end(), [](const Fiber &f) { return f.state == finished; }))
                failure = where_they_are();
            return;
        }
        if (order == random) {
            arrange(sequence, order, random_numbers);
            for (unsigned w = 0; w < warps; ++w)
                still[w] = together ? random_numbers() % 2 : still[w] && moved;
        }
    }
}

// All blocks, one after the other. The shared memory is NaN all over at the start of each, and has to be NaN still, at its
// end, where it was not asked for.
static void run_blocks(const Launch &launch, void *shared)
{
    const unsigned *grid = launch.grid;
    const unsigned char *bytes = (const unsigned char *)shared;
    std::mt19937 random_numbers(launch.seed);
    std::vector<unsigned> blocks(grid[0] * grid[1] * grid[2]);
    for (unsigned b = 0; b < blocks.size(); ++b)
        blocks[b] = b;
    arrange(blocks, (Order)launch.order, random_numbers);
    for (unsigned b : blocks) {
        blockIdx = {b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
        std::memset(shared, 0xff, launch.capacity);
        run_block((Order)launch.order, random_numbers);
        const auto untouched = [](unsigned char c) { return c == 0xff; };
        if (failure.empty() && !std::all_of(bytes + launch.asked, bytes + launch.capacity, untouched))
            failure = "written beyond the shared memory asked for";
        if (!failure.empty())
            return;
    }
}

const char *run(const Launch &launch, void (*kernel)(void **), void **arguments, void *shared)
{
    failure.clear();
    if (launch.threads % warp_size || launch.threads == 0 || launch.threads > most_threads)
        return "not a number of threads for a block";
    if (launch.asked > launch.capacity)
        return "more shared memory than there is";
    body = kernel;
    values = arguments;
    gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    blockDim = {launch.threads, 1, 1};
    fibers = std::vector<Fiber>(launch.threads);
    for (unsigned number = 0; number < launch.threads; ++number) {
        Fiber &fiber = fibers[number];
        fiber.shuffles = 0;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks + number * stack_bytes;
        fiber.context.uc_stack.ss_size = stack_bytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, live, 0);
    }
    run_blocks(launch, shared);
    fibers.clear();
    return failure.c_str();
}

}  // namespace shim
