// Sends frames out of the ports, to interfaces or files. With queues, a frame waits while its interface does not take it.
//
// This file is the last step of every packet. It knows neither programs nor faults.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define QUEUED_BUFFER (104 << 10)  // the kernel doubles it

// Set the size of a buffer: beyond the administrator's limit if the process has the right, otherwise up to the limit.
void core_set_buffer(int socket, int force, int option, int bytes) {
    if (setsockopt(socket, SOL_SOCKET, force, &bytes, sizeof bytes) < 0)
        setsockopt(socket, SOL_SOCKET, option, &bytes, sizeof bytes);
}

// Set the size of a port's send buffer. With queues in the switch it is the kernel's default, so that packets wait in the
// queues.
void core_size_buffer(struct core *core, uint32_t port) {
    const int socket = core->ports[port].socket, bytes = core->services.enqueue ? QUEUED_BUFFER : SOCKET_BUFFER;
    if (socket >= 0 && !core->ports[port].is_file) core_set_buffer(socket, SO_SNDBUFFORCE, SO_SNDBUF, bytes);
}

static void count_sent(struct core *core, uint32_t port, uint64_t length) {
    core->counts[port].sent_packets++;
    core->counts[port].sent_bytes += length;
}

static void count_failure(struct core *core, int error) {
    if (error == EMSGSIZE)
        core->drops[DROP_SENT_TOO_LONG]++;
    else if (error == ENOBUFS || error == EAGAIN)
        core->drops[DROP_SEND_QUEUE_FULL]++;
    else
        core->drops[DROP_SEND_FAILED]++;
}

// Keep a frame that the interface does not take now, and stop the port's queues; return 0 without queues.
static int block(struct core *core, uint32_t port, const struct iovec *parts, size_t count) {
    if (!core->services.enqueue) return 0;
    uint32_t length = 0;
    for (size_t i = 0; i < count; i++) length += (uint32_t)parts[i].iov_len;
    struct blocked *one = malloc(sizeof *one + length), **last = &core->queues->blocked[port];
    if (!one) return 0;
    one->next = NULL;
    one->length = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(one->bytes + one->length, parts[i].iov_base, parts[i].iov_len);
        one->length += (uint32_t)parts[i].iov_len;
    }
    while (*last) last = &(*last)->next;
    *last = one;
    return 1;
}

static ssize_t send_frame(const struct core *core, const struct port *to, const uint8_t *bytes, uint32_t length) {
    struct iovec parts[] = {{(void *)&gso_alone, core->coalesced ? sizeof gso_alone : 0}, {(void *)bytes, length}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(to->socket, &message, MSG_DONTWAIT);
}

// Send the first waiting frame of a port; return 0 if there is none, or the interface still does not take it.
int core_unblock(struct core *core, uint32_t port) {
    struct blocked *one = core->queues->blocked[port];
    struct port *to = &core->ports[port];
    if (!one) return 0;
    if (to->socket >= 0 && send_frame(core, to, one->bytes, one->length) < 0) {
        if (errno == EAGAIN) return 0;
        core->drops[errno == ENOBUFS ? DROP_SEND_QUEUE_FULL : DROP_SEND_FAILED]++;
    } else {
        count_sent(core, port, one->length);
    }
    core->queues->blocked[port] = one->next;
    free(one);
    return 1;
}

// Count a frame that has left, or that the kernel did not take.
static void sent_one(struct core *core, uint32_t number, uint64_t length, const struct msghdr *frame, int error) {
    if (!error) {
        count_sent(core, number, length);
    } else if (error != EAGAIN || !block(core, number, frame->msg_iov, frame->msg_iovlen)) {
        count_failure(core, error);
    }
}

// Send the first `count` prepared messages through one port; count and drop those that the kernel does not take.
static void send_messages(struct core *core, uint32_t number, const uint64_t *lengths, uint32_t count) {
    const struct port *port = &core->ports[number];
    struct coalesced *coalesced = core->coalesced;
    struct mmsghdr *messages = coalesced ? coalesced->messages : core->messages;
    if (coalesced) count = gso_coalesce(core, port->mtu, lengths, count);
    for (uint32_t done = 0, frame = 0; done < count;) {
        int sent = sendmmsg(port->socket, messages + done, count - done, MSG_DONTWAIT);
        const int error = sent <= 0 ? errno : 0;
        for (const uint32_t until = done + (error ? 1 : (uint32_t)sent); done < until; done++) {
            const uint32_t end = frame + (coalesced ? coalesced->frames[done] : 1);
            for (; frame < end; frame++) sent_one(core, number, lengths[frame], &core->messages[frame].msg_hdr, error);
        }
    }
}

// Write one frame to the file that replaces a port's interface. Return 0, or -1 with errno set, as send() does.
static int write_frame(const struct port *port, const struct iovec *parts, size_t count) {
    int result = pcap_write(port->socket, parts, count);
    errno = -result;
    return result < 0 ? -1 : 0;
}

static void write_messages(struct core *core, uint32_t number, const uint64_t *lengths, uint32_t count) {
    const struct port *port = &core->ports[number];
    for (uint32_t i = 0; i < count; i++) {
        const struct msghdr *message = &core->messages[i].msg_hdr;
        if (write_frame(port, message->msg_iov, message->msg_iovlen) < 0) {
            count_failure(core, errno);
            continue;
        }
        count_sent(core, number, lengths[i]);
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
        core->drops[DROP_UNKNOWN_PORT]++;
        return;
    }
    if (captures_at(core)) captured(core, FAULT_OUT, port, &frame, 1);
    if ((to->is_file ? write_frame(to, &frame, 1) : send_frame(core, to, bytes, length)) < 0) {
        count_failure(core, errno);
    } else {
        count_sent(core, port, length);
    }
}

// Send prepared messages out of a port.
void core_send_messages(struct core *core, uint32_t number, const uint64_t *lengths, uint32_t count) {
    struct port *port = &core->ports[number];
    if (captures_at(core)) capture_messages(core, number, count);
    if (port->is_file)
        write_messages(core, number, lengths, count);
    else
        send_messages(core, number, lengths, count);
}
