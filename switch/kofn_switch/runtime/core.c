// Moves packets through the program and out of the ports, under one lock.
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static uint64_t now_us(struct core *core) { return (core_clock_ns() - core->started_ns) / 1000; }

static void drop(struct core *core, enum drop_reason reason) { core->drops[reason]++; }

// See struct services.
static uint8_t *reserve(struct core *core, uint32_t bytes) {
    if (core->queued == SEND_QUEUE || ARENA_BYTES - core->arena_used < bytes) core_flush(core);
    return core->arena + core->arena_used;
}

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

static int deliver_in_memory(struct core *core, uint32_t port, const struct iovec *parts) {
    struct iovec all[4] = {{&port, sizeof port}, parts[0], parts[1], parts[2]};
    if (core->collect) return ring_put(core->collect, all, 4), 1;
    if ((int)port != core->cpu_port) return 0;
    if (ring_put(&core->packet_ins, parts, 3) < 0) drop(core, DROP_PACKET_IN_RING_FULL);
    return 1;
}

// Keep bytes of the arena until they are sent.
static void keep(struct core *core, const uint8_t *bytes, uint32_t count) {
    const uint8_t *end = bytes + count;
    if (bytes < core->arena || bytes > core->arena + ARENA_BYTES || end <= core->arena + core->arena_used) return;
    core->arena_used = (uint32_t)((end - core->arena + 63) & ~63);
}

// Join neighbours into one part: the kernel takes one part faster than two.
static void add_part(struct sending *sending, struct iovec part) {
    struct iovec *last = sending->count ? &sending->parts[sending->count - 1] : NULL;
    if (part.iov_len == 0) return;
    if (last && (uint8_t *)last->iov_base + last->iov_len == part.iov_base)
        last->iov_len += part.iov_len;
    else
        sending->parts[sending->count++] = part;
}

static void emit(struct core *core, uint32_t port, const uint8_t *head, uint32_t head_bytes, const uint8_t *tail,
                 uint32_t tail_bytes, const uint8_t *payload, uint32_t payload_bytes) {
    struct iovec parts[] = {{(void *)head, head_bytes}, {(void *)tail, tail_bytes}, {(void *)payload, payload_bytes}};
    keep(core, head, head_bytes);
    keep(core, tail, tail_bytes);
    if (deliver_in_memory(core, port, parts)) return;
    if (port >= PORTS || core->ports[port].socket < 0) {
        drop(core, DROP_UNKNOWN_PORT);
        return;
    }
    struct sending *sending = &core->queue[core->queued++];
    sending->port = port;
    sending->count = 0;
    for (int i = 0; i < 3; i++) add_part(sending, parts[i]);
}

static void count_failure(struct core *core, int error) {
    if (error == EMSGSIZE)
        drop(core, DROP_SENT_TOO_LONG);
    else if (error == ENOBUFS || error == EAGAIN)
        drop(core, DROP_SEND_QUEUE_FULL);
    else
        drop(core, DROP_SEND_FAILED);
}

static uint64_t sending_bytes(const struct sending *sending) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < sending->count; i++) bytes += sending->parts[i].iov_len;
    return bytes;
}

// Send `count` prepared messages through one port; count and drop those that the kernel does not take.
static void send_messages(struct core *core, uint32_t number, const uint64_t *lengths, uint32_t count) {
    struct port *port = &core->ports[number];
    for (uint32_t done = 0; done < count;) {
        const struct msghdr *first = &core->messages[done].msg_hdr;
        int sent = sendmmsg(port->socket, core->messages + done, count - done, MSG_DONTWAIT);
        if (sent <= 0) {
            if (errno != EAGAIN || !queues_block(core, number, first->msg_iov, first->msg_iovlen))
                count_failure(core, errno);
            done++;
            continue;
        }
        for (int i = 0; i < sent; i++, done++) {
            port->sent_packets++;
            port->sent_bytes += lengths[done];
        }
    }
}

// Write one frame to the file that replaces a port's interface. Return 0, or -1 with errno set, as send().
static int write_frame(const struct port *port, const struct iovec *parts, size_t count) {
    int result = pcap_write(port->socket, parts, count);
    errno = -result;
    return result < 0 ? -1 : 0;
}

static void write_messages(struct core *core, struct port *port, const uint64_t *lengths, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const struct msghdr *message = &core->messages[i].msg_hdr;
        if (write_frame(port, message->msg_iov, message->msg_iovlen) < 0) {
            count_failure(core, errno);
            continue;
        }
        port->sent_packets++;
        port->sent_bytes += lengths[i];
    }
}

static void capture_messages(struct core *core, uint32_t port, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        captured(core, FAULT_OUT, port, core->messages[i].msg_hdr.msg_iov, core->messages[i].msg_hdr.msg_iovlen);
}

// Send one packet.
void core_send_frame(struct core *core, uint32_t port, const uint8_t *bytes, uint32_t length) {
    struct port *to = &core->ports[port];
    const struct iovec frame = {(void *)bytes, length};
    if (to->socket < 0) {
        drop(core, DROP_UNKNOWN_PORT);
        return;
    }
    if (captures_at(core)) captured(core, FAULT_OUT, port, &frame, 1);
    if ((to->is_file ? write_frame(to, &frame, 1) : send(to->socket, bytes, length, MSG_DONTWAIT)) < 0) {
        count_failure(core, errno);
    } else {
        to->sent_packets++;
        to->sent_bytes += length;
    }
}

// Send prepared messages out of a port.
static void put_out(struct core *core, uint32_t number, const uint64_t *lengths, uint32_t count) {
    struct port *port = &core->ports[number];
    if (captures_at(core)) capture_messages(core, number, count);
    if (port->is_file)
        write_messages(core, port, lengths, count);
    else
        send_messages(core, number, lengths, count);
}

// Send prepared messages through the faults of a port.
static void send_with_faults(struct core *core, uint32_t port, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const struct msghdr *message = &core->messages[i].msg_hdr;
        faults_pass(core, FAULT_OUT, port, message->msg_iov, message->msg_iovlen);
    }
}

// Send the queue, in one system call for each port, each port's packets in order.
void core_flush(struct core *core) {
    uint64_t lengths[SEND_QUEUE];
    for (uint32_t first = 0; first < core->queued; first++) {
        uint32_t port = core->queue[first].port, count = 0;
        if (port == PORTS) continue;
        for (uint32_t i = first; i < core->queued; i++) {
            struct sending *sending = &core->queue[i];
            if (sending->port != port) continue;
            lengths[count] = sending_bytes(sending);
            core->messages[count++].msg_hdr = (struct msghdr){.msg_iov = sending->parts, .msg_iovlen = sending->count};
            sending->port = PORTS;
        }
        if (faults_at(core, FAULT_OUT, port))
            send_with_faults(core, port, count);
        else
            put_out(core, port, lengths, count);
    }
    if (core->faults) faults_recycle(core->faults);
    core->queued = 0;
    core->arena_used = 0;
    core->services.flushes++;
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
    free(core->captures);
    trace_free(core);
    free(core->arena);
    free(core->buffers);
    free(core);
}

// Make a core. Return NULL when there is not enough memory.
struct core *core_new(int cpu_port, int bypass, int outgoing, void (*port_down)(uint32_t port)) {
    struct core *core = calloc(1, sizeof *core);
    if (!core) return NULL;
    core->services = (struct services){
        0, 0, now_us, reserve, emit, drop, find_group, find_session, digest, random_number, report, NULL, NULL};
    pthread_mutex_init(&core->turn, NULL);
    pthread_mutex_init(&core->state, NULL);
    for (int i = 0; i < PORTS; i++) core->ports[i].socket = -1;
    core->cpu_port = cpu_port;
    core->bypass = bypass;
    core->outgoing = outgoing;
    core->port_down = port_down;
    core->wake = -1;
    core->started_ns = core_clock_ns();
    core->seed = core->started_ns | 1;
    core->arena = malloc(ARENA_BYTES);
    core->buffers = malloc((size_t)BATCH * (HEADROOM + PACKET_BYTES));
    int result = ring_open(&core->digests) | ring_open(&core->reports) | ring_open(&core->packet_ins);
    if (result == 0 && core->arena && core->buffers) return core;
    core_free(core);
    return NULL;
}

// Run another instance and return the one that ran before. Digests carry the program's number, so those of the old
// program can be told apart.
struct instance *core_swap(struct core *core, struct instance *instance) {
    core_lock(core);
    struct instance *before = core->instance;
    core->instance = instance;
    core->swaps++;
    queues_program(core);
    core_unlock(core);
    return before;
}

// Set the replicas of a group; size 0 removes it.
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

// Send clones to the multicast group `group`, or if it is 0 to `size` replicas; neither removes the session.
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

// Process a packet from the control plane, as received on the CPU port.
void core_send(struct core *core, const uint8_t *packet, uint32_t length) {
    core_lock(core);
    core_process(core, (uint32_t)core->cpu_port, packet, length);
    core_flush(core);
    core_unlock(core);
}

// Process a frame that came to a port by other means than its interface.
void core_receive(struct core *core, uint32_t number, const uint8_t *frame, uint32_t length) {
    struct port *port = &core->ports[number % PORTS];
    core_lock(core);
    port->received_packets++;
    port->received_bytes += length;
    if (faults_at(core, FAULT_IN, number))
        faults_pass(core, FAULT_IN, number, &(struct iovec){(void *)frame, length}, 1);
    else
        core_process(core, number, frame, length);
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
    struct port *p = &core->ports[port % PORTS];
    uint64_t now[] = {p->received_packets, p->received_bytes, p->sent_packets, p->sent_bytes};
    memcpy(four, now, sizeof now);
    memcpy(drops, core->drops, sizeof core->drops);
    core_unlock(core);
}

void core_packet_time(struct core *core, struct packet_time *time) {
    core_lock(core);
    *time = core->time;
    core_unlock(core);
}
