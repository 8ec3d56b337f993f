// Two workers in a closed loop through a switch: how many contributions a second it adds up.
//
//   switch_loop SECONDS BYTES WINDOW GENERATION INTERFACE0 INTERFACE1
//
// Each worker keeps WINDOW blocks in flight: it sends its contribution to a slot, and on the result of a block the one
// for the same slot's next iteration. Packets are those of docs/PROTOCOL.md: Ethernet, IPv4, UDP, 38 bytes of header,
// BYTES of values. Prints contributions per second of both workers together, and how many never had a result. Needs
// root, and a switch that is set up for job 1 with k = 2 and GENERATION, workers 0 and 1 behind the interfaces.
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "packet_socket.h"

#define WINDOW_MAX 4096  // slots

static unsigned values, window;
static uint32_t generation;
static uint64_t values_sum;  // of 16-bit words
static int sockets[2];
static unsigned long results;
static uint32_t iterations[2][WINDOW_MAX];  // that each slot's contribution in flight is for
static uint32_t last[WINDOW_MAX];           // that is sent at all
static uint8_t templates[2][FRAME];
static uint8_t sending[BATCH][HEAD], received[BATCH][FRAME];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void put(uint8_t *at, uint64_t value, int bytes) {
    for (int i = bytes; i-- > 0; value >>= 8) at[i] = (uint8_t)value;
}

static uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t sum16(const uint8_t *at, unsigned bytes) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < bytes; i += 2) sum += (uint64_t)at[i] << 8 | at[i + 1];
    return sum;
}

// The Internet checksum of all that was summed.
static void put_checksum(uint8_t *at, uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    put(at, ~sum & 0xffff, 2);
}

static void prepare(int worker) {
    uint8_t *p = templates[worker];
    static const uint8_t service[] = {0x02, 0x6b, 0x6f, 0x66, 0x6e, 0xfe};
    memcpy(p, service, 6);
    put(p + 6, 0x080000000001u + (unsigned)worker, 6);
    put(p + 12, 0x0800, 2);
    put(p + 14, 0x4500, 2);
    put(p + 16, 66 + values, 2);
    p[22] = 64, p[23] = 17;
    put(p + 26, 0x0a000001u + (unsigned)worker, 4);
    put(p + 30, 0x0a0000feu, 4);
    put_checksum(p + 24, sum16(p + 14, 20));
    put(p + 34, 19278, 2), put(p + 36, 19278, 2), put(p + 38, 46 + values, 2);
    uint8_t *k = p + KIND;
    k[0] = 0x20, k[1] = 1, k[2] = (uint8_t)worker, k[3] = 255, k[5] = (uint8_t)(values / 256);
    put(p + GENERATION, generation, 4), put(p + COUNT, 1, 2), put(p + GRADIENTS, 1, 2);
    for (unsigned i = 0; i < values; i++) p[HEAD + i] = (uint8_t)i;
    values_sum = sum16(p + HEAD, values);
}

// One contribution for `slot` in `iteration` into the batch.
static void add(int worker, struct mmsghdr *messages, struct iovec (*vectors)[2], unsigned at, uint32_t iteration,
                uint32_t slot) {
    memcpy(sending[at], templates[worker], HEAD);
    put(sending[at] + ITERATION, iteration, 4), put(sending[at] + BLOCK, slot + 1, 4), put(sending[at] + SLOT, slot, 2);
    put_checksum(sending[at] + CHECKSUM, sum16(sending[at] + KIND, HEAD - KIND) + values_sum);
    vectors[at][0] = (struct iovec){sending[at], HEAD};
    vectors[at][1] = (struct iovec){templates[worker] + HEAD, values};
    messages[at].msg_hdr = (struct msghdr){.msg_iov = vectors[at], .msg_iovlen = 2};
}

// Take results and send what follows on them; returns the contributions sent.
static unsigned turn(int worker) {
    static struct mmsghdr in[BATCH], out[BATCH];
    static struct iovec in_vectors[BATCH], out_vectors[BATCH][2];
    unsigned count = 0;
    for (int i = 0; i < BATCH; i++) {
        in_vectors[i] = (struct iovec){received[i], 96};
        in[i].msg_hdr = (struct msghdr){.msg_iov = &in_vectors[i], .msg_iovlen = 1};
    }
    int got = recvmmsg(sockets[worker], in, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < got; i++) {
        const uint8_t *p = received[i];
        if (in[i].msg_len < HEAD || (p[KIND] & 15) != RESULT) continue;
        uint32_t iteration = get32(p + ITERATION), slot = (uint32_t)p[SLOT] << 8 | p[SLOT + 1];
        if (slot >= window || iteration != iterations[worker][slot]) continue;
        results++;
        iterations[worker][slot]++;
        if (iterations[worker][slot] <= last[slot]) add(worker, out, out_vectors, count++, iterations[worker][slot], slot);
    }
    return send_all(sockets[worker], out, count);
}

// The first contribution of each slot.
static void begin(int worker) {
    static struct mmsghdr out[BATCH];
    static struct iovec vectors[BATCH][2];
    const uint32_t first = (uint32_t)(time(NULL) % 100000) * 20000;  // later than those of runs before
    for (uint32_t slot = 0; slot < window; slot++) {
        iterations[worker][slot] = first;
        last[slot] = UINT32_MAX;
        add(worker, out, vectors, 0, first, slot);
        send_all(sockets[worker], out, 1);
    }
}

// No more iterations but those that one of the workers has begun.
static void finish(void) {
    for (uint32_t slot = 0; slot < window; slot++)
        last[slot] = iterations[0][slot] > iterations[1][slot] ? iterations[0][slot] : iterations[1][slot];
}

// Until `until`, or until nothing has come for `patience_ms`; returns the contributions sent.
static unsigned long run(double until, int patience_ms) {
    unsigned long done = 0;
    while (now() < until) {
        unsigned long before = results;
        done += turn(0);
        done += turn(1);
        struct pollfd both[] = {{sockets[0], POLLIN, 0}, {sockets[1], POLLIN, 0}};
        if (results == before && poll(both, 2, patience_ms) == 0) break;
    }
    return done;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: %s SECONDS BYTES WINDOW GENERATION INTERFACE0 INTERFACE1\n", argv[0]);
        return 2;
    }
    double seconds = atof(argv[1]);
    values = (unsigned)atoi(argv[2]), window = (unsigned)atoi(argv[3]);
    generation = (uint32_t)strtoul(argv[4], NULL, 10);
    if (values > 8192 || values % 256 || window < 1 || window > WINDOW_MAX) {
        fprintf(stderr, "%s: BYTES is a multiple of 256 up to 8192, WINDOW is 1 to %d\n", argv[0], WINDOW_MAX);
        return 2;
    }
    for (int worker = 0; worker < 2; worker++) {
        sockets[worker] = open_interface(argv[5 + worker]);
        prepare(worker);
    }
    for (int worker = 0; worker < 2; worker++) begin(worker);
    double start = now();
    unsigned long sent = run(start + seconds, 1000);
    double took = now() - start;
    finish();
    unsigned long rest = run(now() + 2, 300);
    printf("%.0f %lu\n", (double)sent / took, 2 * window + sent + rest - results);
    return 0;
}
