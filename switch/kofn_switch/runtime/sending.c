// The packets that a program emits: they are collected, then sent out of each port together, through its faults.
//
// This file does not know how a frame leaves its interface (frames.c).
#include "core.h"

// See struct services.
uint8_t *core_reserve(struct core *core, uint32_t bytes) {
    if (core->queued == SEND_QUEUE || ARENA_BYTES - core->arena_used < bytes) core_flush(core);
    return core->arena + core->arena_used;
}

static int deliver_in_memory(struct core *core, uint32_t port, const struct iovec *parts) {
    struct iovec all[4] = {{&port, sizeof port}, parts[0], parts[1], parts[2]};
    if (core->collect) return ring_put(core->collect, all, 4), 1;
    if ((int)port != core->cpu_port) return 0;
    if (ring_put(&core->packet_ins, parts, 3) < 0) core->drops[DROP_PACKET_IN_RING_FULL]++;
    return 1;
}

// Keep bytes of the arena until they are sent; note bytes outside of it.
static void keep(struct core *core, const uint8_t *bytes, uint32_t count) {
    const uint8_t *end = bytes + count;
    if (bytes < core->arena || bytes > core->arena + ARENA_BYTES) {
        core->borrowed |= count > 0;
        return;
    }
    if (end <= core->arena + core->arena_used) return;
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

void core_emit(struct core *core, uint32_t port, const uint8_t *head, uint32_t head_bytes, const uint8_t *tail,
               uint32_t tail_bytes, const uint8_t *payload, uint32_t payload_bytes) {
    struct iovec parts[] = {{(void *)head, head_bytes}, {(void *)tail, tail_bytes}, {(void *)payload, payload_bytes}};
    keep(core, head, head_bytes);
    keep(core, tail, tail_bytes);
    keep(core, payload, payload_bytes);
    if (deliver_in_memory(core, port, parts)) return;
    if (port >= PORTS || core->ports[port].socket < 0) {
        core->drops[DROP_UNKNOWN_PORT]++;
        return;
    }
    struct sending *sending = &core->queue[core->queued++];
    sending->port = port;
    sending->count = 0;
    for (int i = 0; i < 3; i++) add_part(sending, parts[i]);
}

static uint64_t sending_bytes(const struct sending *sending) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < sending->count; i++) bytes += sending->parts[i].iov_len;
    return bytes;
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
            core_send_messages(core, port, lengths, count);
    }
    if (core->faults) faults_recycle(core->faults);
    core->queued = 0;
    core->borrowed = 0;
    core->arena_used = 0;
    core->services.flushes++;
}
