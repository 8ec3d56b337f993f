// Workers in a closed loop through a switch: measures the contributions that it adds in a second.
//
//   switch_loop SECONDS BYTES WINDOW GENERATION CHECK LANES INTERFACE...
//
// A worker behind each interface keeps WINDOW blocks in flight: it sends its contribution to a slot, and on a block's
// result the contribution to the slot's next block. All are of one iteration, so that the controller gets one arrival
// of each worker, and sums alone are measured. Packets are those of docs/reference/protocol.md: Ethernet, IPv4, UDP,
// 64 bytes of header, BYTES of values in lanes of the code LANES (0 with CHECK 1). Prints contributions a second of all
// workers together, the number of those without a result, of results, and of wrong results. With CHECK 0 the values are
// always the same, and those of results are not checked. With CHECK 1 lane l of worker w in block b of slot s is
// (w + 1) (l + b + s), and a result must be the sum over its members, with a correct checksum and addresses that belong
// together. Needs root, and a switch that is set up for job 1 with GENERATION, with workers 0, 1, ... behind the
// interfaces.
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <string.h>

#include "packet_socket.h"

#define WINDOW_MAX 4096  // slots
#define WORKERS_MAX 64

struct worker {
    int socket;
    uint8_t template[FRAME];
    uint32_t blocks[WINDOW_MAX];  // of each slot's contribution in flight
};

static unsigned values, window, workers, check, lanes;
static uint32_t generation;
static uint64_t values_sum;  // of 16-bit words, without CHECK
static unsigned long sent, results, wrong;  // contributions; results of them
static struct worker all[WORKERS_MAX];
static uint32_t last[WINDOW_MAX];  // the last block to send
static uint8_t sending[BATCH][FRAME], received[BATCH][FRAME];

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

// Return the Internet checksum of a sum.
static uint16_t fold(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static void prepare(unsigned worker) {
    uint8_t *p = all[worker].template;
    static const uint8_t service[] = {0x02, 0x6b, 0x6f, 0x66, 0x6e, 0xfe};
    memcpy(p, service, 6);
    put(p + 6, 0x080000000001u + worker, 6);
    put(p + 12, 0x0800, 2);
    put(p + 14, 0x4500, 2);
    put(p + 16, HEAD - IP + values, 2);
    p[22] = 64, p[23] = 17;
    put(p + 26, 0x0a000001u + worker, 4);
    put(p + TO_IP, 0x0a0000feu, 4);
    put(p + 24, fold(sum16(p + 14, 20)), 2);
    put(p + UDP, KOFN_PORT, 2), put(p + UDP + 2, KOFN_PORT, 2), put(p + UDP + 4, HEAD - UDP + values, 2);
    p[KOFN_AT_VERSION] = KOFN_VERSION << 4 | KOFN_CONTRIBUTE, p[KOFN_AT_JOB] = 1, p[KOFN_AT_WORKER] = (uint8_t)worker;
    p[KOFN_AT_LANES] = (uint8_t)(lanes << 4);
    p[KOFN_AT_RECIPIENT] = KOFN_EVERYONE, p[KOFN_AT_WORDS] = (uint8_t)(values / KOFN_WORD_BYTES);
    put(p + KOFN_AT_GENERATION, generation, 4), put(p + KOFN_AT_ITERATION, 1, 4);
    p[KOFN_AT_COUNT] = 1, put(p + KOFN_AT_WEIGHT, KOFN_WEIGHT_UNIT, 4);
    for (unsigned i = 0; i < values; i++) p[HEAD + i] = (uint8_t)i;
    values_sum = sum16(p + HEAD, values);
}

// Return a value with CHECK; `share` is a worker's rank + 1, or the sum of those in a result.
static uint32_t lane_value(uint32_t share, uint32_t lane, uint32_t block, uint32_t slot) {
    return share * (lane + block + slot);
}

static uint64_t fill(uint8_t *to, unsigned worker, uint32_t block, uint32_t slot) {
    for (uint32_t lane = 0; lane < values / 4; lane++)
        put(to + 4 * lane, lane_value(worker + 1, lane, block, slot), 4);
    return sum16(to, values);
}

// Add a contribution to `block` in `slot` to the batch.
static void add(unsigned worker, struct mmsghdr *messages, struct iovec (*vectors)[2], unsigned at, uint32_t block,
                uint32_t slot) {
    uint8_t *p = sending[at], *body = check ? p + HEAD : all[worker].template + HEAD;
    memcpy(p, all[worker].template, HEAD);
    put(p + KOFN_AT_BLOCK, block, 4), put(p + KOFN_AT_SLOT, slot, 2);
    uint64_t sum = check ? fill(body, worker, block, slot) : values_sum;
    put(p + KOFN_AT_CHECKSUM, fold(sum16(p + KOFN_AT_VERSION, KOFN_HEADER_BYTES) + sum), 2);
    vectors[at][0] = (struct iovec){p, HEAD};
    vectors[at][1] = (struct iovec){body, values};
    messages[at].msg_hdr = (struct msghdr){.msg_iov = vectors[at], .msg_iovlen = 2};
}

// Return whether a result is whole, the sum over its members, and addressed to a MAC and an IP address of one entry.
static int right(const uint8_t *p, unsigned length, uint32_t block, uint32_t slot) {
    uint64_t members = (uint64_t)get32(p + MEMBERS) << 32 | get32(p + MEMBERS + 4);
    uint32_t share = 0, same = 1;
    if (length != HEAD + values || (unsigned)__builtin_popcountll(members) != p[KOFN_AT_COUNT]) return 0;
    for (unsigned worker = 0; worker < workers; worker++) share += members >> worker & 1 ? worker + 1 : 0;
    for (uint32_t lane = 0; lane < values / 4; lane++)
        same &= get32(p + HEAD + 4 * lane) == lane_value(share, lane, block, slot);
    return same && fold(sum16(p + KOFN_AT_VERSION, KOFN_HEADER_BYTES + values)) == 0 && memcmp(p + 4, p + TO_IP + 2, 2) == 0;
}

// Take results and send the next contributions.
static void turn(unsigned worker) {
    static struct mmsghdr in[BATCH], out[BATCH];
    static struct iovec in_vectors[BATCH], out_vectors[BATCH][2];
    unsigned count = 0;
    for (int i = 0; i < BATCH; i++) {
        in_vectors[i] = (struct iovec){received[i], check ? FRAME : 128};
        in[i].msg_hdr = (struct msghdr){.msg_iov = &in_vectors[i], .msg_iovlen = 1};
    }
    uint32_t *blocks = all[worker].blocks;
    int got = recvmmsg(all[worker].socket, in, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < got; i++) {
        const uint8_t *p = received[i];
        if (in[i].msg_len < HEAD || (p[KOFN_AT_KIND] & 15) != KOFN_RESULT) continue;
        uint32_t block = get32(p + KOFN_AT_BLOCK), slot = (uint32_t)p[KOFN_AT_SLOT] << 8 | p[KOFN_AT_SLOT + 1];
        if (slot >= window || block != blocks[slot]) continue;
        results++;
        if (check && !right(p, in[i].msg_len, block, slot)) wrong++;
        blocks[slot]++;
        if (blocks[slot] <= last[slot]) add(worker, out, out_vectors, count++, blocks[slot], slot);
    }
    sent += send_all(all[worker].socket, out, count);
}

// Send the first contribution of each slot.
static void begin(unsigned worker, uint32_t first) {
    static struct mmsghdr out[BATCH];
    static struct iovec vectors[BATCH][2];
    for (uint32_t slot = 0; slot < window; slot++) {
        all[worker].blocks[slot] = first;
        last[slot] = UINT32_MAX;
        add(worker, out, vectors, 0, first, slot);
        sent += send_all(all[worker].socket, out, 1);
    }
}

// Begin no block that no worker has begun.
static void finish(void) {
    for (uint32_t slot = 0; slot < window; slot++) {
        last[slot] = 0;
        for (unsigned worker = 0; worker < workers; worker++)
            if (all[worker].blocks[slot] > last[slot]) last[slot] = all[worker].blocks[slot];
    }
}

// Run until `until`, or until no packet has come for `patience_ms`, or until no result is missing.
static void run(double until, int patience_ms) {
    struct pollfd polled[WORKERS_MAX];
    for (unsigned i = 0; i < workers; i++) polled[i] = (struct pollfd){all[i].socket, POLLIN, 0};
    while (now() < until && results < sent) {
        unsigned long before = results;
        for (unsigned worker = 0; worker < workers; worker++) turn(worker);
        if (results == before && poll(polled, workers, patience_ms) == 0) break;
    }
}

int main(int argc, char **argv) {
    if (argc < 8 || argc > 7 + WORKERS_MAX) {
        fprintf(stderr, "usage: %s SECONDS BYTES WINDOW GENERATION CHECK LANES INTERFACE...\n", argv[0]);
        return 2;
    }
    double seconds = atof(argv[1]);
    values = (unsigned)atoi(argv[2]), window = (unsigned)atoi(argv[3]);
    generation = (uint32_t)strtoul(argv[4], NULL, 10);
    check = (unsigned)atoi(argv[5]), lanes = (unsigned)atoi(argv[6]), workers = (unsigned)argc - 7;
    if (values > 8192 || values % 256 || window < 1 || window > WINDOW_MAX) {
        fprintf(stderr, "%s: BYTES is a multiple of 256 up to 8192, WINDOW is 1 to %d\n", argv[0], WINDOW_MAX);
        return 2;
    }
    for (unsigned worker = 0; worker < workers; worker++) {
        all[worker].socket = open_interface(argv[7 + worker]);
        prepare(worker);
    }
    const uint32_t first = 1 + (uint32_t)(now() * 1000) % 100000000 * 40;  // later than those of earlier runs
    for (unsigned worker = 0; worker < workers; worker++) begin(worker, first);
    double start = now();
    const unsigned long before = sent;
    run(start + seconds, 1000);
    double rate = (double)(sent - before) / (now() - start);
    finish();
    run(now() + 2, 300);
    printf("%.0f %lu %lu %lu\n", rate, sent - results, results, wrong);
    return 0;
}
