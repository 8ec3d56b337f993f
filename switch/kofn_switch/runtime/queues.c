// Packets between ingress and egress: see queues.h.
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void forget(struct queue *queue) {
    for (struct queued *next, *one = queue->first; one; one = next) {
        next = one->next;
        free(one);
    }
    queue->first = NULL;
    queue->last = &queue->first;
    queue->count = 0;
}

static void forget_blocked(struct queues *queues, uint32_t port) {
    for (struct blocked *next, *one = queues->blocked[port]; one; one = next) {
        next = one->next;
        free(one);
    }
    queues->blocked[port] = NULL;
}

void queues_clear(struct queues *queues) {
    for (uint32_t port = 0; port < QUEUE_PORTS; port++) {
        forget_blocked(queues, port);
        for (uint32_t i = 0; i < QUEUE_PRIORITIES; i++) forget(&queues->queues[port][i]);
        queues->depths[port] = 0;
    }
    queues->count = 0;
}

// See struct services.
static void enqueue(struct core *core, uint32_t port, uint32_t priority, const void *state, uint32_t state_bytes,
                    const uint8_t *packet, uint32_t length) {
    struct queues *queues = core->queues;
    struct queue *queue = &queues->queues[port % QUEUE_PORTS][priority % QUEUE_PRIORITIES];
    uint32_t *depth = &queues->depths[port % QUEUE_PORTS];
    struct queued *one = queue->count < queue->depth ? malloc(sizeof *one + state_bytes + length) : NULL;
    if (!one) {
        core->services.drop(core, DROP_QUEUE_FULL);
        return;
    }
    const uint64_t now_ns = core_clock_ns(), due_ns = queue->last_due_ns + queue->interval_ns;
    memcpy(one->bytes, state, state_bytes);
    memcpy(one->bytes + state_bytes, packet, length);
    one->next = NULL;
    one->queued_us = core->services.now_us(core);
    one->due_ns = queue->last_due_ns = queue->interval_ns && due_ns > now_ns ? due_ns : now_ns;
    one->departure = (struct departure){one->bytes, one->bytes + state_bytes, .port = port, .depth = (*depth)++};
    *queue->last = one;
    queue->last = &one->next;
    queue->count++;
    queues->count++;
}

// Return the queue of a port that has a packet to send now, the highest priority first.
static struct queue *due(struct queues *queues, uint32_t port, uint64_t now_ns) {
    for (uint32_t i = QUEUE_PRIORITIES; i-- > 0;) {
        struct queue *queue = &queues->queues[port][i];
        if (queue->count && queue->first->due_ns <= now_ns) return queue;
    }
    return NULL;
}

static struct queued *take(struct queues *queues, struct queue *queue, uint32_t port) {
    struct queued *one = queue->first;
    queue->first = one->next;
    if (!queue->first) queue->last = &queue->first;
    queue->count--;
    queues->count--;
    queues->depths[port]--;
    return one;
}

// Take a packet from its queue, run its egress and send it, before its bytes are freed.
static void depart(struct core *core, struct queue *queue, uint32_t port) {
    struct queued *one = take(core->queues, queue, port);
    one->departure.waited_us = (uint32_t)(core->services.now_us(core) - one->queued_us);
    one->departure.depth_left = core->queues->depths[port];
    core->instance->program->depart(core, core->instance, &one->departure);
    core_flush(core);
    free(one);
}

static void serve_port(struct core *core, uint32_t port, uint64_t now_ns) {
    struct queue *queue;
    while (!core->queues->blocked[port] && (queue = due(core->queues, port, now_ns))) depart(core, queue, port);
}

// Send the packets that may leave. The caller holds the lock. A recirculated packet may enter a queue again.
void queues_serve(struct core *core) {
    struct queues *queues = core->queues;
    if (!queues || !queues->count) return;
    core_flush(core);
    const uint64_t now_ns = core_clock_ns();
    for (uint32_t port = 0; queues->count && port < QUEUE_PORTS; port++)
        if (queues->depths[port]) serve_port(core, port, now_ns);
    if (queues->count) core_wake(core);
}

// Serve queues after a wait of the packet thread: interfaces may take frames again, and packets may be due.
void queues_release(struct core *core) {
    if (!core->services.enqueue) return;
    core_lock(core);
    for (uint32_t port = 0; port < QUEUE_PORTS; port++)
        while (core_unblock(core, port)) continue;
    queues_serve(core);
    core_unlock(core);
}

// Return the events that the packet thread waits for at a port's interface.
short queues_events(const struct core *core, uint32_t port) {
    return core->queues && core->queues->blocked[port] ? POLLIN | POLLOUT : POLLIN;
}

static uint64_t next_due_ns(const struct queues *queues) {
    uint64_t first = UINT64_MAX;
    for (uint32_t port = 0; port < QUEUE_PORTS; port++) {
        if (!queues->depths[port] || queues->blocked[port]) continue;
        for (uint32_t i = 0; i < QUEUE_PRIORITIES; i++) {
            const struct queue *queue = &queues->queues[port][i];
            if (queue->count && queue->first->due_ns < first) first = queue->first->due_ns;
        }
    }
    return first;
}

// Return the time until a packet is due, if that is before `timeout` (NULL: never).
const struct timespec *queues_timeout(struct core *core, const struct timespec *timeout, struct timespec *own) {
    core_lock(core);
    const uint64_t now_ns = core_clock_ns(), due_ns = core->queues->count ? next_due_ns(core->queues) : UINT64_MAX;
    core_unlock(core);
    if (due_ns == UINT64_MAX) return timeout;
    const uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : 0;
    if (timeout && (uint64_t)timeout->tv_sec * 1000000000u + (uint64_t)timeout->tv_nsec <= left_ns) return timeout;
    *own = (struct timespec){(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)};
    return own;
}

// Use queues if the program or the control plane can see them. Interfaces then buffer little, and packets wait in the queues.
void queues_program(struct core *core) {
    struct queues *queues = core->queues;
    if (!queues) return;
    queues_clear(queues);
    const int wanted = queues->configured || queues->priorities > 1;
    core->services.enqueue = core->instance && (wanted || core->instance->program->queued) ? enqueue : NULL;
    for (uint32_t port = 0; port < PORTS; port++) core_size_buffer(core, port);
}

// Make the queues, once, before the first program. Return 0 or -ENOMEM.
int core_open_queues(struct core *core, uint32_t priorities) {
    struct queues *queues = calloc(1, sizeof *queues);
    if (!queues) return -ENOMEM;
    queues->priorities = priorities;
    for (uint32_t port = 0; port < QUEUE_PORTS; port++)
        for (uint32_t i = 0; i < QUEUE_PRIORITIES; i++) queues->queues[port][i].depth = QUEUE_DEPTH;
    queues_clear(queues);
    core->queues = queues;
    return 0;
}

static void configure(struct queue *queue, int64_t depth, int64_t rate_pps) {
    if (depth >= 0) queue->depth = (uint32_t)depth;
    if (rate_pps >= 0) queue->interval_ns = rate_pps ? 1000000000u / (uint64_t)rate_pps : 0;
}

// Set depth and rate. Negative numbers mean all ports, all priorities, the present depth or rate.
void core_set_queue(struct core *core, int port, int priority, int64_t depth, int64_t rate_pps) {
    core_lock(core);
    for (int p = 0; p < QUEUE_PORTS; p++)
        for (int i = 0; i < QUEUE_PRIORITIES; i++)
            if ((port < 0 || p == port) && (priority < 0 || i == priority))
                configure(&core->queues->queues[p][i], depth, rate_pps);
    const int first = !core->queues->configured;
    core->queues->configured = 1;
    if (first) queues_program(core);
    core_unlock(core);
}

void queues_free(struct core *core) {
    if (!core->queues) return;
    queues_clear(core->queues);
    free(core->queues);
    core->queues = NULL;
}
