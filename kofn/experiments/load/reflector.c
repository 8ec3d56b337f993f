// Sends every contribution back to where it came from, marked as a result: what the kernel leaves a switch to reach.
//
//   reflector INTERFACE...
//
// As many frames go in and out as with a switch that waits for all workers; nothing is parsed and nothing added up.
// Prints "ready", and at each SIGUSR1 what a frame took so far, as the embedded switch does.
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdint.h>

#include "packet_socket.h"

#define PORTS_MAX 64

static uint8_t frames[BATCH][FRAME];

static double receiving, sending, done;  // seconds, frames
static volatile sig_atomic_t asked;

static void ask(int number) {
    (void)number;
    asked = 1;
}

static void answer(void) {
    asked = 0;
    printf("time for each packet received: receiving %.2f us, sending %.2f us\n", 1e6 * receiving / done,
           1e6 * sending / done);
    fflush(stdout);
}

static int reflect(int fd) {
    static struct mmsghdr in[BATCH], out[BATCH];
    static struct iovec in_vectors[BATCH], out_vectors[BATCH];
    unsigned count = 0;
    for (int i = 0; i < BATCH; i++) {
        in_vectors[i] = (struct iovec){frames[i], FRAME};
        in[i].msg_hdr = (struct msghdr){.msg_iov = &in_vectors[i], .msg_iovlen = 1};
    }
    const double began = now();
    int got = recvmmsg(fd, in, BATCH, MSG_DONTWAIT, NULL);
    if (got <= 0) return 0;
    const double received = now();
    for (int i = 0; i < got; i++) {
        if (in[i].msg_len < HEAD || frames[i][12] != 0x08 || frames[i][13] != 0x00) continue;  // not IPv4
        frames[i][KOFN_AT_KIND] = (uint8_t)((frames[i][KOFN_AT_KIND] & 0xf0) | KOFN_RESULT);
        out_vectors[count] = (struct iovec){frames[i], in[i].msg_len};
        out[count].msg_hdr = (struct msghdr){.msg_iov = &out_vectors[count], .msg_iovlen = 1};
        count++;
    }
    send_all(fd, out, count);
    receiving += received - began, sending += now() - received, done += got;
    return 1;
}

int main(int argc, char **argv) {
    struct pollfd polled[PORTS_MAX];
    const int ports = argc - 1;
    if (ports < 1 || ports > PORTS_MAX) {
        fprintf(stderr, "usage: %s INTERFACE...\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < ports; i++) polled[i] = (struct pollfd){open_interface(argv[1 + i]), POLLIN, 0};
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = ask}, NULL);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int busy = 0;
        for (int i = 0; i < ports; i++) busy |= reflect(polled[i].fd);
        if (asked) answer();
        if (!busy) poll(polled, (nfds_t)ports, -1);
    }
}
