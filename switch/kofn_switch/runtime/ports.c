// Interfaces and the thread that moves packets between them and the program.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

static int set_option(int socket, int level, int option, int value) {
    return setsockopt(socket, level, option, &value, sizeof value);
}

static int attach(const struct core *core, int socket, int index) {
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index};
    struct packet_mreq promiscuous = {.mr_ifindex = index, .mr_type = PACKET_MR_PROMISC};
    core_set_buffer(socket, SO_RCVBUFFORCE, SO_RCVBUF, SOCKET_BUFFER);
    if (set_option(socket, SOL_PACKET, PACKET_AUXDATA, 1) < 0) return -errno;
    if (core->coalesced && set_option(socket, SOL_PACKET, PACKET_VNET_HDR, 1) < 0) return -errno;
    // With and without this option, the kernel does not return a socket's own frames to the socket.
    if (!core->outgoing && set_option(socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1) < 0) return -errno;
    if (core->bypass && set_option(socket, SOL_PACKET, PACKET_QDISC_BYPASS, 1) < 0) return -errno;
    if (setsockopt(socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) < 0) return -errno;
    if (bind(socket, (struct sockaddr *)&address, sizeof address) < 0) return -errno;
    return 0;
}

static uint32_t mtu_of(int socket, const char *interface) {
    struct ifreq request = {0};
    strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
    return ioctl(socket, SIOCGIFMTU, &request) < 0 ? 0 : (uint32_t)request.ifr_mtu;
}

// Open one port, while the thread does not run. Return 0 or a negative error number.
int core_open_port(struct core *core, uint32_t port, const char *interface) {
    int index = (int)if_nametoindex(interface);
    if (index == 0) return -errno;
    // Protocol 0: the socket receives nothing before it is bound to its interface.
    int opened = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (opened < 0) return -errno;
    int result = attach(core, opened, index);
    if (result < 0) {
        close(opened);
        return result;
    }
    core->ports[port].socket = opened;
    core->ports[port].index = index;
    core->ports[port].mtu = mtu_of(opened, interface);
    core_size_buffer(core, port);
    return 0;
}

void core_close_ports(struct core *core) {
    core_lock(core);
    for (int i = 0; i < PORTS; i++) {
        if (core->ports[i].socket >= 0) close(core->ports[i].socket);
        core->ports[i].socket = -1;
        core->ports[i].is_file = 0;
    }
    captures_close(core);
    core_unlock(core);
}

static void prepare_buffers(struct core *core, struct mmsghdr *messages) {
    for (int i = 0; i < BATCH; i++) {
        uint8_t *buffer = core->buffers + (size_t)i * (HEADROOM + RECEIVED_BYTES) + HEADROOM;
        core->vectors[i] = (struct iovec){buffer, RECEIVED_BYTES};
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &core->vectors[i], .msg_iovlen = 1, .msg_control = core->control[i]};
    }
}

// The kernel delivers an outer VLAN tag apart from the packet: put it back between the addresses and the type.
static uint8_t *restore_tag(uint8_t *packet, uint32_t *length, struct msghdr *message) {
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    if (!header || header->cmsg_level != SOL_PACKET || header->cmsg_type != PACKET_AUXDATA) return packet;
    struct tpacket_auxdata data;
    memcpy(&data, CMSG_DATA(header), sizeof data);
    if (!(data.tp_status & TP_STATUS_VLAN_VALID) || *length < 12) return packet;
    uint16_t type = data.tp_status & TP_STATUS_VLAN_TPID_VALID ? data.tp_vlan_tpid : ETHERTYPE_VLAN;
    uint16_t tag[] = {htons(type), htons(data.tp_vlan_tci)};
    memmove(packet - sizeof tag, packet, 12);
    memcpy(packet - sizeof tag + 12, tag, sizeof tag);
    *length += sizeof tag;
    return packet - sizeof tag;
}

static void process_batch(struct core *core, uint32_t number, struct mmsghdr *messages, int count) {
    core->segments_used = 0;
    for (int i = 0; i < count; i++) {
        struct virtio_net_hdr offload = {0};
        const uint32_t before = core->coalesced ? sizeof offload : 0;
        uint32_t length = messages[i].msg_len - before;
        uint8_t *received = core->vectors[i].iov_base;
        memcpy(&offload, received, before);
        uint8_t *packet = restore_tag(received + before, &length, &messages[i].msg_hdr);
        offload.csum_start += (uint16_t)(received + before - packet);
        gso_arrived(core, number, packet, length, &offload, core_arrived);
    }
}

// Process the packets received since `began`, and send the outputs.
static void handle_batch(struct core *core, uint32_t number, struct mmsghdr *messages, int count, uint64_t began) {
    const uint64_t received = core_clock_ns();
    core_lock(core);
    process_batch(core, number, messages, count);
    const uint64_t processed = core_clock_ns();
    core_flush(core);
    core->time.receiving += received - began;
    core->time.processing += processed - received;
    core->time.sending += core_clock_ns() - processed;
    core_unlock(core);
}

static int receive_batch(struct core *core, uint32_t number, struct mmsghdr *messages) {
    const uint64_t began = core_clock_ns();
    for (int i = 0; i < BATCH; i++) messages[i].msg_hdr.msg_controllen = sizeof core->control[i];
    int count = recvmmsg(core->ports[number].socket, messages, BATCH, MSG_DONTWAIT, NULL);
    if (count > 0) handle_batch(core, number, messages, count, began);
    // The kernel reports ENETDOWN once each time an interface goes down or is removed.
    if (count < 0 && errno == ENETDOWN) core->port_down(number);
    return count;
}

static int list_ports(struct core *core, struct pollfd *polled, uint32_t *numbers) {
    int count = 1;
    polled[0] = (struct pollfd){.fd = core->wake, .events = POLLIN};
    for (uint32_t i = 0; i < PORTS; i++) {
        if (core->ports[i].socket < 0 || core->ports[i].is_file) continue;
        numbers[count] = i;
        polled[count++] = (struct pollfd){.fd = core->ports[i].socket, .events = POLLIN};
    }
    return count;
}

// Sleep until packets arrive or can be sent, a delayed or queued packet is due, or core_wake() is called.
static void sleep_on(struct core *core, struct pollfd *polled, const uint32_t *numbers, int count) {
    struct timespec delayed, queued;
    const struct timespec *timeout = core->faults ? faults_timeout(core, &delayed) : NULL;
    uint64_t wakes;
    if (core->services.enqueue) timeout = queues_timeout(core, timeout, &queued);
    for (int i = 1; i < count; i++) polled[i].events = queues_events(core, numbers[i]);
    ppoll(polled, (nfds_t)count, timeout, NULL);
    while (polled[0].revents & POLLIN && read(core->wake, &wakes, sizeof wakes) < 0 && errno == EINTR) continue;
}

// Deliver the frames whose injected delay is over, and send the outputs.
static void release_delayed(struct core *core) {
    core_lock(core);
    faults_release(core);
    core_flush(core);
    core_unlock(core);
}

static void *forward(void *argument) {
    struct core *core = argument;
    struct mmsghdr messages[BATCH] = {0};
    struct pollfd polled[PORTS + 1];
    uint32_t numbers[PORTS + 1];
    int count = list_ports(core, polled, numbers);
    prepare_buffers(core, messages);
    while (!atomic_load(&core->stopping)) {
        int busy = 0;
        for (int i = 1; i < count; i++) busy |= receive_batch(core, numbers[i], messages) > 0;
        if (core->faults) release_delayed(core);
        queues_release(core);
        if (!busy) sleep_on(core, polled, numbers, count);
    }
    return NULL;
}

int core_start(struct core *core) {
    atomic_store(&core->stopping, 0);
    faults_reset(core);
    core->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (core->wake < 0) return -errno;
    int result = pthread_create(&core->thread, NULL, forward, core);
    core->running = result == 0;
    if (!core->running) close(core->wake);
    return -result;
}

void core_stop(struct core *core) {
    if (!core->running) return;
    atomic_store(&core->stopping, 1);
    core_wake(core);
    pthread_join(core->thread, NULL);
    core_lock(core);
    core->running = 0;
    close(core->wake);
    if (core->faults) faults_clear(core->faults);
    if (core->queues) queues_clear(core->queues);
    core_unlock(core);
}
