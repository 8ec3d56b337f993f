// A raw socket on one interface, and the offsets that the benchmark's programs share.
#ifndef KOFN_BENCH_PACKET_SOCKET_H
#define KOFN_BENCH_PACKET_SOCKET_H

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "kofn_header.h"

#define HEAD KOFN_HEAD  // Ethernet, IPv4, UDP, kofn's header
#define IP 14
#define UDP 34
#define TO_IP 30
#define MEMBERS (KOFN_AT_MEMBERS + KOFN_MEMBERS_BYTES - 8)  // each worker contributes part 0 alone
#define BATCH 64  // frames received or sent at once
#define FRAME 9216

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

// Seconds.
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int open_interface(const char *name) {
    int one = 1, size = 32 << 20, fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    address.sll_ifindex = (int)if_nametoindex(name);
    setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        perror(name);
        exit(1);
    }
    return fd;
}

static unsigned send_all(int fd, struct mmsghdr *messages, unsigned count) {
    unsigned done = 0;
    while (done < count) {
        int sent = sendmmsg(fd, messages + done, count - done, 0);
        if (sent <= 0) break;
        done += (unsigned)sent;
    }
    return done;
}

#endif
