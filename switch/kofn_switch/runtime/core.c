// A switch, and the operations of its control plane. This file calls all other files of the runtime except the packet thread
// (ports.c). Those files do not call this file: faults deliver frames through the pointer `process`.
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t now_us(struct core *core) { return (core_clock_ns() - core->started_ns) / 1000; }

static void drop(struct core *core, enum drop_reason reason) { core->drops[reason]++; }

static const struct group *find_group(struct core *core, uint32_t id) {
    return core->groups[id % GROUPS].size ? &core->groups[id % GROUPS] : NULL;
}

static const struct session *find_session(struct core *core, uint32_t id) {
    const struct session *session = &core->sessions[id & SESSION_MAX];
    return session->targets && session->targets->size ? session : NULL;
}

// Send a record to the control plane: the program's number, the number of its digest or message, and values.
static int tell(struct core *core, struct ring *ring, uint32_t number, const uint64_t *limbs, uint32_t count) {
    uint32_t head[] = {core->swaps, number};
    struct iovec parts[] = {{head, sizeof head}, {(void *)limbs, count * sizeof *limbs}};
    return ring_put(ring, parts, count ? 2 : 1);
}

static void digest(struct core *core, uint32_t list, const uint64_t *limbs, uint32_t count) {
    if (tell(core, &core->digests, list, limbs, count) < 0) drop(core, DROP_DIGEST_RING_FULL);
}

static void report(struct core *core, uint32_t message, const uint64_t *limbs, uint32_t count) {
    if (tell(core, &core->reports, message, limbs, count) < 0) drop(core, DROP_REPORT_RING_FULL);
}

// xorshift64*
static uint64_t random_number(struct core *core) {
    core->seed ^= core->seed >> 12;
    core->seed ^= core->seed << 25;
    core->seed ^= core->seed >> 27;
    return core->seed * 0x2545f4914f6cdd1du;
}

void core_process(struct core *core, uint32_t port, const uint8_t *packet, uint32_t length) {
    if (!core->instance)
        drop(core, DROP_NO_PROGRAM);
    else if (length > PACKET_MAX)
        drop(core, DROP_RECEIVED_TOO_LONG);
    else
        core->instance->program->process(core, core->instance, port, packet, length);
    queues_serve(core);
}

void core_free(struct core *core) {
    for (int i = 0; i < GROUPS; i++) free(core->groups[i].replicas);
    for (uint32_t i = 0; i <= SESSION_MAX; i++) free(core->sessions[i].own.replicas);
    ring_close(&core->digests);
    ring_close(&core->reports);
    ring_close(&core->packet_ins);
    pthread_mutex_destroy(&core->turn);
    pthread_mutex_destroy(&core->state);
    faults_free(core);
    captures_close(core);
    queues_free(core);
    counts_free(core);
    free(core->captures);
    trace_free(core);
    free(core->arena);
    free(core->buffers);
    free(core->segments);
    free(core->coalesced);
    free(core);
}

// Make a core. Frames leave coalesced, at most `gso` bytes of them together; with 0, singly. A negative `gso` says that the kernel
// does not know coalesced packets. Return NULL when there is not enough memory.
struct core *core_new(int cpu_port, int bypass, int outgoing, int gso, void (*port_down)(uint32_t port)) {
    struct core *core = calloc(1, sizeof *core);
    if (!core) return NULL;
    core->services = (struct services){
        0, 0, now_us, core_reserve, core_emit, drop, find_group, find_session, digest, random_number, report, NULL, NULL};
    pthread_mutex_init(&core->turn, NULL);
    pthread_mutex_init(&core->state, NULL);
    for (int i = 0; i < PORTS; i++) core->ports[i].socket = -1;
    core->counts = core->own_counts;
    core->process = core_process;
    core->cpu_port = cpu_port;
    core->bypass = bypass;
    core->outgoing = outgoing;
    core->port_down = port_down;
    core->wake = -1;
    core->started_ns = core_clock_ns();
    core->seed = core->started_ns | 1;
    core->arena = malloc(ARENA_BYTES);
    core->buffers = malloc((size_t)BATCH * (HEADROOM + RECEIVED_BYTES));
    core->segments = malloc(SEGMENTS_BYTES);
    core->coalesced = gso >= 0 ? malloc(sizeof *core->coalesced) : NULL;
    int result = ring_open(&core->digests) | ring_open(&core->reports) | ring_open(&core->packet_ins);
    const int enough = core->arena && core->buffers && core->segments && (core->coalesced || gso < 0);
    if (core->coalesced) core->coalesced->most = (uint32_t)gso;
    if (result == 0 && enough) return core;
    core_free(core);
    return NULL;
}

// Run another instance and return the instance that ran before. Each digest carries the program's number, so the control plane
// can tell the old program's digests apart.
struct instance *core_swap(struct core *core, struct instance *instance) {
    core_lock(core);
    struct instance *before = core->instance;
    core->instance = instance;
    core->swaps++;
    queues_program(core);
    core_unlock(core);
    return before;
}

// Set the replicas of a group; size 0 removes the group.
int core_set_group(struct core *core, uint32_t id, const struct replica *replicas, uint32_t size) {
    struct replica *copy = size ? malloc(size * sizeof *copy) : NULL;
    if (size && !copy) return -ENOMEM;
    if (size) memcpy(copy, replicas, size * sizeof *copy);
    core_lock(core);
    struct replica *before = core->groups[id % GROUPS].replicas;
    core->groups[id % GROUPS] = (struct group){size, copy};
    core_unlock(core);
    free(before);
    return 0;
}

// Send clones to the multicast group `group`, or to `size` replicas if `group` is 0. If both are 0, the session is removed.
int core_set_session(struct core *core, uint32_t id, uint32_t group, uint32_t length, const struct replica *replicas,
                     uint32_t size) {
    struct session *session = &core->sessions[id & SESSION_MAX];
    struct replica *copy = size ? malloc(size * sizeof *copy) : NULL;
    if (size && !copy) return -ENOMEM;
    if (size) memcpy(copy, replicas, size * sizeof *copy);
    core_lock(core);
    struct replica *before = session->own.replicas;
    *session = (struct session){group ? &core->groups[group % GROUPS] : &session->own, length, {size, copy}};
    core_unlock(core);
    free(before);
    return 0;
}

// Process a packet-out of the control plane, as received on the CPU port.
void core_packet_out(struct core *core, const uint8_t *packet, uint32_t length) {
    core_lock(core);
    core_process(core, (uint32_t)core->cpu_port, packet, length);
    core_flush(core);
    core_unlock(core);
}

// Take a frame that came to a port. The caller holds the lock and flushes.
void core_arrived(struct core *core, uint32_t number, const uint8_t *frame, uint32_t length) {
    const struct iovec part = {(void *)frame, length};
    core->counts[number].received_packets++;
    core->counts[number].received_bytes += length;
    if (captures_at(core)) captured(core, FAULT_IN, number, &part, 1);
    if (faults_at(core, FAULT_IN, number))
        faults_pass(core, FAULT_IN, number, &part, 1);
    else
        core_process(core, number, frame, length);
}

// Take a frame that came to a port by other means than its interface.
void core_receive(struct core *core, uint32_t number, const uint8_t *frame, uint32_t length) {
    core_lock(core);
    core_arrived(core, number % PORTS, frame, length);
    core_flush(core);
    core_unlock(core);
}

// Process one packet; its outputs are collected instead of sent, each after its port number.
int64_t core_inject(struct core *core, uint32_t port, const uint8_t *packet, uint32_t length, uint8_t *to,
                    uint64_t space) {
    struct ring collected;
    if (ring_open(&collected) < 0) {
        ring_close(&collected);
        return -ENOMEM;
    }
    core_lock(core);
    __typeof__(core->services.enqueue) enqueue = core->services.enqueue;
    core->services.enqueue = NULL;
    core->collect = &collected;
    core_process(core, port, packet, length);
    core->collect = NULL;
    core->services.enqueue = enqueue;
    core_flush(core);
    core_unlock(core);
    int64_t written = ring_take(&collected, to, space, 0);
    ring_close(&collected);
    return written;
}

int64_t core_take_digests(struct core *core, uint8_t *to, uint64_t space, int timeout_ms) {
    return ring_take(&core->digests, to, space, timeout_ms);
}

int64_t core_take_reports(struct core *core, uint8_t *to, uint64_t space, int timeout_ms) {
    return ring_take(&core->reports, to, space, timeout_ms);
}

int64_t core_take_packet_ins(struct core *core, uint8_t *to, uint64_t space, int timeout_ms) {
    return ring_take(&core->packet_ins, to, space, timeout_ms);
}

void core_stats(struct core *core, uint32_t port, uint64_t *four, uint64_t *drops) {
    core_lock(core);
    memcpy(four, &core->counts[port % PORTS], sizeof *core->counts);
    memcpy(drops, core->drops, sizeof core->drops);
    core_unlock(core);
}

void core_packet_time(struct core *core, struct packet_time *time) {
    core_lock(core);
    *time = core->time;
    core_unlock(core);
}
