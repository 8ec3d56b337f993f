/* An engine whose peer answers, garbles, repeats and loses packets, while its caller begins, contributes and regroups,
 * under sanitizers including ThreadSanitizer. Iterations must go on. In some iterations of the first core the engine
 * encodes and averages itself, from a gradient that arrives in pieces: the mean of one worker is its gradient. */
#include <arpa/inet.h>
#include <math.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"

enum { BLOCKS = 40, WORDS = 4, BYTES = WORDS * KOFN_WORD_BYTES, LANES = BYTES / 4, ELEMENTS = BLOCKS * LANES - 100 };
enum { PACKET = KOFN_HEADER_BYTES + BYTES, TRAIN = 40 };
enum { SCALE = 20, RECORD = 72, SENT = 32, JOURNAL = 8 * 12, PLACES = KOFN_PARTS * 2 * BLOCKS };

static uint64_t draw(uint64_t *random, uint64_t below) {
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return *random % below;
}

static uint16_t folded(const uint8_t *data, size_t size) {
    uint64_t sum = 0;
    for (size_t at = 0; at < size; at += 2)
        sum += (uint64_t)data[at] | (uint64_t)data[at + 1] << 8;
    return (uint16_t)(sum % 0xFFFF);
}

struct peer {
    int socket;
    uint64_t random;
    atomic_int closing;
    uint8_t train[TRAIN * PACKET]; /* answers that leave in one message, which the kernel does not segment */
    size_t train_bytes;
};

static void leave(struct peer *peer) {
    union {
        char room[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr head;
    } size = {.head = {CMSG_LEN(sizeof(uint16_t)), IPPROTO_UDP, UDP_SEGMENT}};
    struct iovec part = {peer->train, peer->train_bytes};
    const struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &size, .msg_controllen = sizeof size};
    memcpy(CMSG_DATA(&size.head), &(uint16_t){PACKET}, sizeof(uint16_t));
    sendmsg(peer->socket, &message, 0);
    peer->train_bytes = 0;
}

static void answer(struct peer *peer, uint8_t *packet, size_t size) {
    struct header header = header_read(packet);
    header.kind = KOFN_RESULT;
    header.members[0] = 1, header.k = 1, header.count = 1, header.weight = 256, header.checksum = 0;
    header.flags = 0;
    header_write(&header, packet);
    const uint16_t sum = folded(packet, size), field = (uint16_t)(sum ? 0xFFFF - sum : 0);
    memcpy(packet + KOFN_AT_CHECKSUM - KOFN_FRAME_BYTES, &field, 2);
    if (!draw(&peer->random, 50))
        packet[draw(&peer->random, size)] ^= 1;
    for (int copies = 1 + !draw(&peer->random, 20); copies; copies--) {
        const size_t bytes = draw(&peer->random, 100) ? size : draw(&peer->random, size);
        memcpy(peer->train + peer->train_bytes, packet, bytes);
        peer->train_bytes += bytes;
        if (bytes < size || peer->train_bytes == sizeof peer->train)
            leave(peer);
    }
}

static void *peer_run(void *argument) {
    struct peer *peer = argument;
    uint8_t packet[PACKET + 1];
    while (!atomic_load(&peer->closing)) {
        struct pollfd waits = {.fd = peer->socket, .events = POLLIN};
        if (poll(&waits, 1, 20) <= 0)
            continue;
        ssize_t size;
        do {
            size = recv(peer->socket, packet, sizeof packet, MSG_DONTWAIT);
            if (size == PACKET && draw(&peer->random, 30))
                answer(peer, packet, PACKET);
        } while (size >= 0 && draw(&peer->random, 10));
        leave(peer);
    }
    return NULL;
}

static int udp(struct sockaddr_in *place) {
    socklen_t size = sizeof *place;
    const int opened = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    *place = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (opened < 0 || bind(opened, (struct sockaddr *)place, size) || getsockname(opened, (struct sockaddr *)place, &size))
        abort();
    return opened;
}

/* The memory of a reduction. */
struct work {
    struct reduction reduction;
    struct ledger ledger;
    struct sums sums;
    uint64_t factors[LANES], checksums[BLOCKS];
    int64_t journal[JOURNAL / 8 + LANES], records[BLOCKS * RECORD / 8], sent[PLACES * SENT / 8];
    int64_t pending[BLOCKS * LANES], shifts[BLOCKS], scale[BLOCKS], left[BLOCKS], missing[BLOCKS], level[BLOCKS], scratch[LANES];
    uint8_t packed[PLACES * BYTES], closed[BLOCKS];
    float gradient[ELEMENTS], mean[ELEMENTS];
    double closed_s[BLOCKS];
};

static void work_open(struct work *work, int64_t in_place) {
    memset(work, 0, sizeof *work);
    work->ledger = (struct ledger){
        .blocks = BLOCKS, .lanes = LANES, .room = BYTES, .most = {1 << 30}, .factors = work->factors,
        .journal = (struct journal *)work->journal, .records = (struct record *)work->records,
        .sent = (struct sent *)work->sent, .pending = work->pending, .shifts = work->shifts, .packed = work->packed,
        .residual = RESIDUAL_EXACT, .in_place = in_place,
    };
    work->sums = (struct sums){
        LANES, ELEMENTS, {1 << 30, -1, -1, -1}, NULL, 0x1p-40, work->factors, work->checksums, work->closed_s, work->closed,
    };
    for (int at = 0; at < LANES; at++)
        work->factors[at] = 2 * (uint64_t)at + 1;
    for (int at = 0; at < BLOCKS; at++)
        work->scale[at] = SCALE;
}

/* A caller of one port. */
struct caller {
    struct engine *engine;
    struct port *port;
    struct core *core;
    int64_t told; /* told blocks of the iteration */
    uint64_t random;
    long iterations;
    uint8_t values[2 * BLOCKS][BYTES];
    struct work *work; /* NULL: it always contributes itself */
    int reduces;
};

/* Lets the engine contribute, while pieces arrive in any order. */
static void reduce(struct caller *caller, int64_t iteration) {
    struct work *work = caller->work;
    for (int at = 0; at < ELEMENTS; at++)
        work->gradient[at] = (float)((int64_t)draw(&caller->random, 2001) - 1000);
    memset(work->closed, 0, sizeof work->closed);
    for (int at = 0; at < BLOCKS; at++) {
        work->left[at] = at, work->missing[at] = LANES;
        work->level[at] = (int64_t)draw(&caller->random, 3);
    }
    work->reduction = (struct reduction){
        .ledger = &work->ledger, .sums = &work->sums, .mean = work->mean, .iteration = iteration,
        .fading = {256, INT64_MAX, 1}, .gradient = {work->gradient, ELEMENTS, iteration * 4, iteration, 256, 256, iteration},
        .scale = work->scale, .left = work->left, .end = BLOCKS, .missing = work->missing, .level = work->level,
        .window = 16, .lookahead = 1 + (int64_t)draw(&caller->random, 20), .sample_stride = 3, .scratch = work->scratch,
    };
    port_reduce(caller->port, &work->reduction);
    for (int64_t at = 0, turn = (int64_t)draw(&caller->random, 16); at < BLOCKS; at++) {
        __atomic_store_n(&work->missing[at < 32 ? at ^ turn : at], 0, __ATOMIC_RELEASE);
        port_wake(caller->port);
        if (!draw(&caller->random, 8)) {
            const int64_t first = (int64_t)draw(&caller->random, BLOCKS);
            port_await(caller->port, first, first + (int64_t)draw(&caller->random, (uint64_t)(BLOCKS - first) + 1));
        }
        if (!draw(&caller->random, 400)) {
            port_regroup(caller->port, (uint32_t)caller->core->generation + 1);
            port_resume(caller->port, clock_s());
        }
    }
}

/* Whether an iteration's mean equals the gradient. */
static int reduced(struct caller *caller) {
    const struct work *work = caller->work;
    port_reduce(caller->port, NULL);
    for (int at = 0; at < ELEMENTS; at++)
        if (work->mean[at] != work->gradient[at])
            return fprintf(stderr, "element %d is %g, not %g\n", at, work->mean[at], work->gradient[at]), 0;
    return work->reduction.encoded == BLOCKS;
}

/* Settles a block that the caller was told about although the engine could have settled it. */
static void settle(struct caller *caller, const struct instruction *told, const struct result *result) {
    if (!reduction_closed(&caller->work->reduction, &told->block, result, 1))
        abort();
}

static int contribute(struct caller *caller) {
    struct port *port = caller->port;
    const int64_t iteration = caller->core->iteration;
    int32_t blocks[BLOCKS];
    struct packed ready[BLOCKS];
    for (int32_t at = 0; at < BLOCKS; at++) {
        uint8_t *values = caller->values[(iteration % 2) * BLOCKS + at];
        blocks[at] = at;
        ready[at] = (struct packed){values, BYTES, at, 0, 0, 256};
        memset(values, (int)iteration, BYTES);
    }
    int failed = port_begin(port, iteration + 1, clock_s(), blocks, BLOCKS, iteration * BLOCKS, 0);
    caller->reduces = caller->work && draw(&caller->random, 2);
    if (!failed && caller->reduces)
        return reduce(caller, iteration + 1), 0;
    for (int32_t at = 0; !failed && at < BLOCKS; at += 8) {
        failed = port_contribute(port, ready + at, 8, clock_s(), 0, 1, -1);
        if (!draw(&caller->random, 200)) {
            port_regroup(port, (uint32_t)caller->core->generation + 1);
            failed |= port_resume(port, clock_s());
        }
        port_want(port, 4);
    }
    return failed;
}

static int wait_for_all(struct caller *caller) {
    const double begin_s = clock_s();
    int64_t delivered = 0;
    for (int complete = 0; !complete;) {
        struct pollfd waits = {.fd = port_news_fd(caller->port), .events = POLLIN};
        poll(&waits, 1, 1000);
        struct instruction news[7];
        struct result results[7];
        int64_t count = 7;
        port_hold(caller->port);
        while (count == 7) {
            count = port_take(caller->port, news, results, 7);
            for (int64_t at = 0; at < count; at++) {
                delivered += news[at].kind == DELIVER;
                complete |= news[at].kind == COMPLETE;
                if (caller->reduces && news[at].kind == DELIVER)
                    settle(caller, news + at, results + at);
            }
        }
        port_release(caller->port);
        if (count < 0)
            return fprintf(stderr, "%s\n", engine_error(caller->engine)), 1;
        if (clock_s() - begin_s > 20) {
            fprintf(stderr, "iteration %ld is not complete after 20 s\n", (long)caller->core->iteration);
            return 1;
        }
    }
    return caller->reduces ? !reduced(caller) : delivered != caller->told;
}

static void *iterate(void *argument) {
    struct caller *caller = argument;
    int failed = 0;
    for (int at = 0; at < 20 && !failed; at++, caller->iterations++)
        failed = contribute(caller) || wait_for_all(caller);
    return failed ? caller : NULL;
}

int main(int count, char **arguments) {
    uint64_t random = 88172645463325252u + (count > 2 ? strtoull(arguments[2], NULL, 10) : 1);
    struct sockaddr_in here, there;
    const int one = udp(&here), other = udp(&there);
    if (connect(one, (struct sockaddr *)&there, sizeof there) || connect(other, (struct sockaddr *)&here, sizeof here))
        return 2;
    struct peer peer = {.socket = other, .random = random + 1};
    pthread_t thread;
    pthread_create(&thread, NULL, peer_run, &peer);
    static struct caller callers[2];
    static struct work work;
    const double end_s = clock_s() + (count > 1 ? atof(arguments[1]) : 1);
    int failed = 0;
    long engines = 0;
    for (; !failed && clock_s() < end_s; engines++) {
        const struct layout layout = {BLOCKS, WORDS, 32, 0};
        const int64_t batches[] = {8, 0};
        struct core *cores[2];
        for (int at = 0; at < 2; at++) {
            cores[at] = core_open(1 + at, 0, &layout, 64, 16, 0.005, 2, 4, 0, 1, 0);
            core_enter(cores[at], 1);
        }
        const double mbps = draw(&random, 2) ? 200 : 0;
        const int64_t burst = 4 * (BYTES + KOFN_HEADER_BYTES + KOFN_FRAME_BYTES);
        struct engine *engine = engine_open(cores, batches, 2, one, mbps, burst, 0.016, draw(&random, 2) != 0);
        pthread_t threads[2];
        work_open(&work, (int64_t)draw(&random, 2));
        callers[0].work = &work;
        for (int at = 0; at < 2; at++) {
            struct caller *caller = callers + at;
            caller->engine = engine, caller->port = engine_port(engine, at), caller->core = cores[at];
            caller->told = at ? 0 : BLOCKS, caller->random = 1 + draw(&random, 1u << 30);
            pthread_create(threads + at, NULL, iterate, caller);
        }
        for (int at = 0; at < 2; at++) {
            void *wrong;
            pthread_join(threads[at], &wrong);
            failed |= wrong != NULL;
        }
        engine_close(engine);
        core_close(cores[0]);
        core_close(cores[1]);
    }
    atomic_store(&peer.closing, 1);
    pthread_join(thread, NULL);
    printf("%ld engines, %ld and %ld iterations\n", engines, callers[0].iterations, callers[1].iterations);
    return failed || callers[0].iterations < 20 || callers[1].iterations < 20;
}
