// Sends one frame repeatedly, whatever its fate.
//
//   flood SECONDS RATE INTERFACE < FRAME
//
// RATE frames a second, or for 0 as many as the kernel takes. Prints the number of frames sent, and the seconds.
#define _GNU_SOURCE
#include <stdint.h>
#include <unistd.h>

#include "packet_socket.h"

int main(int argc, char **argv) {
    static uint8_t frame[FRAME];
    static struct mmsghdr messages[BATCH];
    const ssize_t size = read(0, frame, sizeof frame);
    if (argc != 4 || size <= 0) {
        fprintf(stderr, "usage: %s SECONDS RATE INTERFACE < FRAME\n", argv[0]);
        return 2;
    }
    struct iovec part = {frame, (size_t)size};
    for (int i = 0; i < BATCH; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    const double seconds = atof(argv[1]), rate = atof(argv[2]), start = now();
    const int fd = open_interface(argv[3], 0);
    double sent = 0, passed;
    while ((passed = now() - start) < seconds) {
        double due = rate > 0 ? passed * rate - sent : BATCH;
        if (due < 1)
            usleep(50);
        else
            sent += send_all(fd, messages, due < BATCH ? (unsigned)due : BATCH);
    }
    printf("%.0f %.6f\n", sent, passed);
    return 0;
}
