// Sends every contribution back to where it came from, marked as a result: what the kernel leaves a switch to reach.
//
//   reflector INTERFACE0 INTERFACE1
//
// As many frames go in and out as with a switch and k = 2, nothing is parsed and nothing added up. Prints "ready".
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>

#include "packet_socket.h"

static uint8_t frames[BATCH][FRAME];

static int reflect(int fd) {
    static struct mmsghdr in[BATCH], out[BATCH];
    static struct iovec in_vectors[BATCH], out_vectors[BATCH];
    unsigned count = 0;
    for (int i = 0; i < BATCH; i++) {
        in_vectors[i] = (struct iovec){frames[i], FRAME};
        in[i].msg_hdr = (struct msghdr){.msg_iov = &in_vectors[i], .msg_iovlen = 1};
    }
    int got = recvmmsg(fd, in, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < got; i++) {
        if (in[i].msg_len < HEAD || frames[i][12] != 0x08 || frames[i][13] != 0x00) continue;  // not IPv4
        frames[i][KIND] = (uint8_t)((frames[i][KIND] & 0xf0) | RESULT);
        out_vectors[count] = (struct iovec){frames[i], in[i].msg_len};
        out[count].msg_hdr = (struct msghdr){.msg_iov = &out_vectors[count], .msg_iovlen = 1};
        count++;
    }
    send_all(fd, out, count);
    return got > 0;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s INTERFACE0 INTERFACE1\n", argv[0]);
        return 2;
    }
    struct pollfd both[] = {{open_interface(argv[1]), POLLIN, 0}, {open_interface(argv[2]), POLLIN, 0}};
    puts("ready");
    fflush(stdout);
    for (;;) {
        int busy = reflect(both[0].fd) | reflect(both[1].fd);
        if (!busy) poll(both, 2, -1);
    }
}
