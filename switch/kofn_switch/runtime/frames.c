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

// Send the first waiting frame of a port; return 0 if there is none, or the interface still does not take it.
int core_unblock(struct core *core, uint32_t port) {
    struct blocked *one = core->queues->blocked[port];
    struct port *to = &core->ports[port];
    if (!one) return 0;
    if (to->socket >= 0 && send(to->socket, one->bytes, one->length, MSG_DONTWAIT) < 0) {
        if (errno == EAGAIN) return 0;
        core->drops[errno == ENOBUFS ? DROP_SEND_QUEUE_FULL : DROP_SEND_FAILED]++;
    } else {
        to->sent_packets++;
        to->sent_bytes += one->length;
    }
    core->queues->blocked[port] = one->next;
    free(one);
    return 1;
}

// Send `count` prepared messages through one port; count and drop those that the kernel does not take.
static void send_messages(struct core *core, uint32_t number, const uint64_t *lengths, uint32_t count) {
    struct port *port = &core->ports[number];
    for (uint32_t done = 0; done < count;) {
        const struct msghdr *first = &core->messages[done].msg_hdr;
        int sent = sendmmsg(port->socket, core->messages + done, count - done, MSG_DONTWAIT);
        if (sent <= 0) {
            if (errno != EAGAIN || !block(core, number, first->msg_iov, first->msg_iovlen))
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

// Write one frame to the file that replaces a port's interface. Return 0, or -1 with errno set, as send() does.
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
        core->drops[DROP_UNKNOWN_PORT]++;
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
void core_send_messages(struct core *core, uint32_t number, const uint64_t *lengths, uint32_t count) {
    struct port *port = &core->ports[number];
    if (captures_at(core)) capture_messages(core, number, count);
    if (port->is_file)
        write_messages(core, port, lengths, count);
    else
        send_messages(core, number, lengths, count);
}
