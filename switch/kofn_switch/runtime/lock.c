// The lock of a switch, its clock, and the call that wakes its packet thread. It knows neither packets nor ports.
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

// Control operations take `turn` and wait for `state`. The packet thread takes `turn` as well before each batch, so it
// cannot overtake a waiting operation. Packets of a batch arrived before the lock was taken.
void core_lock(struct core *core) {
    pthread_mutex_lock(&core->turn);
    pthread_mutex_lock(&core->state);
    pthread_mutex_unlock(&core->turn);
    core->services.arrived_us = core->services.now_us(core);
}

void core_unlock(struct core *core) { pthread_mutex_unlock(&core->state); }

uint64_t core_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// Wake the packet thread. Either the caller holds the lock, or no other thread may stop the packet thread meanwhile.
void core_wake(struct core *core) {
    uint64_t one = 1;
    if (!core->running || pthread_equal(pthread_self(), core->thread)) return;
    while (write(core->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}
