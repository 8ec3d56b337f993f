#include "engine.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "datagrams.h"

enum { AT_ONCE = 64, LEAVING = 256 };
enum { GATHER_FROM = 16, GATHER_NS = 50000 }; /* with so many in flight answers gather so long, to be taken together */
#define CHECKSUM_AT (KOFN_AT_CHECKSUM - KOFN_FRAME_BYTES)
#define LEAST_WAIT_S 50e-6 /* nothing is waited for less: the poll's own time */
#define TELL_S 5e-3        /* so long a block that has closed waits for others at most, to be told together */

/* A packet on its way out: what is needed to send it if its request is still in flight. */
struct outgoing {
    int64_t request, launch, size;
    uint8_t head[KOFN_HEADER_BYTES];
    int64_t next; /* unused one */
};

struct engine {
    struct core *core;
    int socket, wake_fd, news_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    int closing;
    char error[ERROR_BYTES];
    struct traffic traffic;

    struct instruction *news;
    int64_t news_count, news_capacity;
    int told; /* news_fd is readable */
    int64_t batch;     /* so many blocks that have closed are told together, where more are open */
    double tell_by_s;  /* when they are told in any case; INFINITY: there are none */
    int64_t wanted; /* that fewer contributions than that wait; 0: nobody asks */
    int64_t behind; /* the iteration in which it was said that the others are further */

    struct pacer pacer;
    struct outgoing *outgoing; /* that wait for the pacer */
    int64_t outgoing_capacity, unused;

    double read_s; /* what had come by then is read */
    struct packet packets[AT_ONCE];
    uint8_t *bodies[AT_ONCE];
    uint8_t heads[AT_ONCE * KOFN_HEADER_BYTES];

    struct leaving { /* as soon as the core is free for others */
        int64_t count;
        uint8_t heads[LEAVING * KOFN_HEADER_BYTES];
        const uint8_t *bodies[LEAVING];
        int64_t sizes[LEAVING];
    } leaving;
};

double engine_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void signal_fd(int fd) {
    const uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void drain_fd(int fd) {
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

static void fail(struct engine *engine, const char *why) {
    if (!engine->error[0])
        strncpy(engine->error, why, sizeof engine->error - 1);
}

/* -- out */

static void flush(struct engine *engine) {
    struct leaving *leaving = &engine->leaving;
    uint8_t left[LEAVING] = {0};
    int32_t error = 0;
    if (!leaving->count)
        return;
    const int64_t took = datagrams_send(engine->socket, leaving->heads, KOFN_HEADER_BYTES, CHECKSUM_AT, leaving->bodies,
                                        leaving->sizes, leaving->count, NULL, 0, left, &error);
    for (int64_t at = 0; at < leaving->count; at++)
        engine->traffic.bytes_sent += left[at] * (KOFN_HEADER_BYTES + leaving->sizes[at]);
    engine->traffic.packets_sent += took;
    engine->traffic.send_failures += leaving->count - took;
    leaving->count = 0;
}

/* The values of a request that is in flight as it was; those of a PULL and of a slot query are zeros. */
static const uint8_t *values_of(const struct core *core, int64_t request, int64_t launch) {
    const struct flight *flight = core->in_flight.by_request[request];
    if (!launch)
        return core->zeros;
    return flight && flight->launch == launch ? flight->values : NULL;
}

static void leave(struct engine *engine, int64_t request, int64_t launch, const uint8_t *head, int64_t size) {
    const uint8_t *values = values_of(engine->core, request, launch);
    struct leaving *leaving = &engine->leaving;
    if (!values)
        return;
    memcpy(leaving->heads + leaving->count * KOFN_HEADER_BYTES, head, KOFN_HEADER_BYTES);
    leaving->bodies[leaving->count] = values;
    leaving->sizes[leaving->count] = size;
    if (++leaving->count == LEAVING)
        flush(engine);
}

/* A place for a packet that waits, -1 without memory. */
static int64_t place_for(struct engine *engine) {
    if (engine->unused < 0) {
        const int64_t before = engine->outgoing_capacity, capacity = before ? 2 * before : AT_ONCE;
        struct outgoing *larger = realloc(engine->outgoing, (size_t)capacity * sizeof *larger);
        if (!larger)
            return -1;
        engine->outgoing = larger;
        engine->outgoing_capacity = capacity;
        for (int64_t at = before; at < capacity; at++)
            larger[at].next = at + 1 < capacity ? at + 1 : -1;
        engine->unused = before;
    }
    const int64_t place = engine->unused;
    engine->unused = engine->outgoing[place].next;
    return place;
}

static void give_back(struct engine *engine, int64_t place) {
    engine->outgoing[place].next = engine->unused;
    engine->unused = place;
}

static void send_paced(struct engine *engine, const struct instruction *send, double now) {
    const int64_t request = send->block * KOFN_PARTS + send->part, place = place_for(engine);
    const int64_t bytes = KOFN_FRAME_BYTES + KOFN_HEADER_BYTES + send->size;
    const double leaves_s = place < 0 ? -1 : pacer_send(&engine->pacer, place, bytes, now);
    if (leaves_s < 0) {
        fail(engine, "no memory for packets that wait for their turn");
        return;
    }
    if (leaves_s == 0) {
        give_back(engine, place);
        leave(engine, request, send->launch, send->header, send->size);
        return;
    }
    struct outgoing *waits = engine->outgoing + place;
    waits->request = request, waits->launch = send->launch, waits->size = send->size;
    memcpy(waits->head, send->header, sizeof waits->head);
    core_leaves(engine->core, request, send->launch, leaves_s);
}

static void release(struct engine *engine, double now) {
    for (int64_t place; (place = pacer_release(&engine->pacer, now)) >= 0; give_back(engine, place)) {
        const struct outgoing *waits = engine->outgoing + place;
        leave(engine, waits->request, waits->launch, waits->head, waits->size);
    }
    engine->pacer.rings_s = INFINITY;
}

/* -- what the core wants done */

static void tell(struct engine *engine, const struct instruction *news) {
    if (engine->news_count == engine->news_capacity) {
        const int64_t capacity = engine->news_capacity ? 2 * engine->news_capacity : AT_ONCE;
        void *larger = realloc(engine->news, (size_t)capacity * sizeof *news);
        if (!larger) {
            fail(engine, "no memory for what is to be done");
            return;
        }
        engine->news = larger;
        engine->news_capacity = capacity;
    }
    engine->news[engine->news_count++] = *news;
    if (news->kind != DELIVER)
        engine->tell_by_s = 0;
}

/* Whether blocks that have closed are told now: fewer at a time as fewer are open, and at once where no more can close. */
static int enough(const struct engine *engine, double now) {
    const int64_t open = engine->core->open_count / 2;
    return engine->news_count >= (open < engine->batch ? open : engine->batch) || engine->tell_by_s <= now ||
           !engine->core->in_flight.count;
}

/* Make news_fd readable where there is something to say. */
static void say(struct engine *engine, double now) {
    const struct core *core = engine->core;
    const int behind = core_left_behind(core) && engine->behind != core->iteration;
    const int fewer = core->waiting_count + engine->pacer.count < engine->wanted;
    if (engine->news_count && engine->tell_by_s == INFINITY)
        engine->tell_by_s = now + TELL_S;
    if (!(engine->news_count && enough(engine, now)) && !engine->error[0] && !behind && !fewer)
        return;
    if (behind)
        engine->behind = core->iteration;
    engine->wanted = fewer ? 0 : engine->wanted;
    if (!engine->told) {
        engine->told = 1;
        signal_fd(engine->news_fd);
    }
}

static void follow(struct engine *engine, double now) {
    struct core *core = engine->core;
    const int64_t count = core->instructions_count;
    const struct instruction *instructions = core->instructions;
    for (int64_t at = 0; at < count; at++)
        if (instructions[at].kind != SEND)
            tell(engine, instructions + at);
        else if (engine->pacer.byte_s > 0)
            send_paced(engine, instructions + at, now);
        else
            leave(engine, instructions[at].block * KOFN_PARTS + instructions[at].part, instructions[at].launch,
                  instructions[at].header, instructions[at].size);
    core_done(core);
    if (engine->pacer.byte_s > 0)
        pacer_set(&engine->pacer, now);
    say(engine, now);
}

/* -- in */

/* Whether a datagram is a packet, whose header is read. */
static int is_packet(struct engine *engine, const uint8_t *head, int64_t size, uint16_t sum, struct header *header) {
    struct traffic *traffic = &engine->traffic;
    if (size < KOFN_HEADER_BYTES)
        return traffic->short_packets++, 0;
    *header = header_read(head);
    if (header->version != KOFN_VERSION)
        return traffic->other_version++, 0;
    const int64_t values = size - KOFN_HEADER_BYTES;
    if (values != header->words * KOFN_WORD_BYTES)
        return traffic->wrong_length++, 0;
    if (values > engine->core->history.room)
        return traffic->wrong_length++, 0; /* of another job; where it is ours, the slot says so when it is asked */
    return sum ? (traffic->damaged++, 0) : 1;
}

/* A buffer for each body; whether there was memory. */
static int with_buffers(struct engine *engine) {
    for (int at = 0; at < AT_ONCE; at++)
        if (!engine->bodies[at] && !(engine->bodies[at] = core_buffer(engine->core)))
            return 0;
    return 1;
}

/* All that has come; whether there may be more. */
static int receive(struct engine *engine) {
    int64_t sizes[AT_ONCE], places[AT_ONCE], good = 0;
    uint16_t sums[AT_ONCE];
    engine->read_s = engine_now_s();
    const int64_t came = datagrams_receive(engine->socket, engine->heads, KOFN_HEADER_BYTES, engine->bodies,
                                           engine->core->history.room, AT_ONCE, sizes, sums, NULL);
    pthread_mutex_lock(&engine->lock);
    const double now = engine_now_s();
    for (int64_t at = 0; at < came; at++) {
        engine->traffic.packets_received++;
        engine->traffic.bytes_received += sizes[at];
        struct packet *packet = engine->packets + good;
        if (is_packet(engine, engine->heads + at * KOFN_HEADER_BYTES, sizes[at], sums[at], &packet->header)) {
            packet->values = engine->bodies[at];
            packet->size = (int32_t)(sizes[at] - KOFN_HEADER_BYTES);
            packet->taken = 0;
            places[good++] = at;
        }
    }
    if (good && core_packets_in(engine->core, engine->packets, good, now))
        fail(engine, core_error(engine->core));
    for (int64_t at = 0; at < good; at++)
        if (engine->packets[at].taken)
            engine->bodies[places[at]] = NULL;
    follow(engine, now);
    if (!with_buffers(engine))
        fail(engine, "no memory for packets that come");
    pthread_mutex_unlock(&engine->lock);
    flush(engine);
    return came == AT_ONCE && !engine->error[0];
}

/* -- the thread */

/* What is due by now, and what callers have left; when something is due next. */
static double look(struct engine *engine) {
    struct core *core = engine->core;
    const double now = engine_now_s();
    if (engine->pacer.rings_s <= now)
        release(engine, now);
    if (core_deadline_s(core) <= engine->read_s && core_timer(core, now)) /* by now more may have come */
        fail(engine, core_error(core));
    follow(engine, now);
    return fmin(fmin(core_deadline_s(core), engine->pacer.rings_s), engine->told ? INFINITY : engine->tell_by_s);
}

static struct timespec until(double due_s) {
    const double wait_s = fmin(3600, fmax(LEAST_WAIT_S, due_s - engine_now_s()));
    return (struct timespec){.tv_sec = (time_t)wait_s, .tv_nsec = (long)(1e9 * (wait_s - floor(wait_s)))};
}

static void *run(void *argument) {
    struct engine *engine = argument;
    pthread_setname_np(pthread_self(), "kofn-engine");
    struct pollfd waited[] = {{.fd = engine->socket, .events = POLLIN}, {.fd = engine->wake_fd, .events = POLLIN}};
    for (;;) {
        while (receive(engine)) /* all that has come is read before a timeout fires */
            ;
        pthread_mutex_lock(&engine->lock);
        const double due_s = look(engine);
        const int closing = engine->closing || engine->error[0];
        const int many = engine->core->in_flight.count >= GATHER_FROM;
        pthread_mutex_unlock(&engine->lock);
        flush(engine);
        if (closing)
            return NULL;
        if (many)
            nanosleep(&(struct timespec){.tv_nsec = GATHER_NS}, NULL);
        const struct timespec wait = until(due_s);
        ppoll(waited, 2, &wait, NULL);
        if (waited[1].revents)
            drain_fd(engine->wake_fd);
    }
}

/* -- for callers */

struct engine *engine_open(struct core *core, int socket, int64_t batch, double mbps, int64_t burst_bytes, double late_s) {
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return NULL;
    engine->core = core;
    engine->socket = socket;
    pacer_open(&engine->pacer, mbps, burst_bytes, late_s);
    engine->unused = -1;
    engine->batch = batch;
    engine->tell_by_s = INFINITY;
    engine->wake_fd = eventfd(0, EFD_CLOEXEC);
    engine->news_fd = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&engine->lock, NULL);
    if (engine->wake_fd < 0 || engine->news_fd < 0 || !with_buffers(engine) ||
        pthread_create(&engine->thread, NULL, run, engine)) {
        engine->core = NULL;
        engine_close(engine);
        return NULL;
    }
    return engine;
}

void engine_close(struct engine *engine) {
    if (engine->core) {
        pthread_mutex_lock(&engine->lock);
        engine->closing = 1;
        pthread_mutex_unlock(&engine->lock);
        signal_fd(engine->wake_fd);
        pthread_join(engine->thread, NULL);
    }
    for (int at = 0; at < AT_ONCE; at++)
        free(engine->bodies[at]);
    close(engine->wake_fd);
    close(engine->news_fd);
    pthread_mutex_destroy(&engine->lock);
    pacer_close(&engine->pacer);
    free(engine->outgoing);
    free(engine->news);
    free(engine);
}

int engine_news_fd(const struct engine *engine) {
    return engine->news_fd;
}

static int64_t take(struct engine *engine, struct instruction *into, struct result *results, int64_t room) {
    const int64_t count = engine->news_count < room ? engine->news_count : room, left = engine->news_count - count;
    if (engine->told)
        drain_fd(engine->news_fd);
    engine->told = 0;
    engine->tell_by_s = INFINITY;
    for (int64_t at = 0; at < count; at++) {
        into[at] = engine->news[at];
        if (into[at].kind == DELIVER)
            results[at] = history_one(&engine->core->history, into[at].iteration, into[at].block);
    }
    memmove(engine->news, engine->news + count, (size_t)left * sizeof *engine->news);
    engine->news_count = left;
    return engine->error[0] ? -1 : count;
}

const char *engine_error(const struct engine *engine) {
    return engine->error;
}

int engine_error_is_cores(const struct engine *engine) {
    return !strcmp(engine->error, core_error(engine->core));
}

const struct traffic *engine_traffic(const struct engine *engine) {
    return &engine->traffic;
}

int64_t engine_queued(const struct engine *engine) {
    return engine->pacer.byte_s > 0 ? engine->pacer.count + engine->core->urgent_count : 0;
}

/* -- one at a time */

/* Let the thread go on, which may have something to do. */
static void leave_core(struct engine *engine) {
    const int wake = engine->core->instructions_count > 0 || engine->wanted;
    pthread_mutex_unlock(&engine->lock);
    if (wake)
        signal_fd(engine->wake_fd);
}

#define ALONE(type, call) \
    do { \
        pthread_mutex_lock(&engine->lock); \
        const type returned = call; \
        leave_core(engine); \
        return returned; \
    } while (0)

#define ALONE_VOID(call) \
    do { \
        pthread_mutex_lock(&engine->lock); \
        call; \
        leave_core(engine); \
    } while (0)

int64_t engine_take(struct engine *engine, struct instruction *into, struct result *results, int64_t room) {
    ALONE(int64_t, take(engine, into, results, room));
}

void engine_want(struct engine *engine, int64_t fewer) {
    ALONE_VOID(engine->wanted = fewer);
}

int engine_begin(struct engine *engine, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
                 int32_t lanes) {
    ALONE(int, core_begin(engine->core, iteration, now, blocks, count, first, lanes));
}

int engine_jump(struct engine *engine, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
                int32_t lanes) {
    ALONE(int, core_jump(engine->core, iteration, now, blocks, count, first, lanes));
}

int engine_contribute(struct engine *engine, const struct packed *ready, int64_t count, double now, int32_t part,
                      int32_t counts, int32_t uses) {
    ALONE(int, core_contribute(engine->core, ready, count, now, part, counts, uses));
}

int engine_result_in(struct engine *engine, int64_t iteration, int64_t block, const struct result *result, double now) {
    ALONE(int, core_result_in(engine->core, iteration, block, result, now));
}

int engine_ask_slot(struct engine *engine) {
    ALONE(int, core_ask_slot(engine->core));
}

void engine_withdraw(struct engine *engine, int64_t *requests, int64_t count) {
    ALONE_VOID(core_withdraw(engine->core, requests, count));
}

void engine_enter(struct engine *engine, uint32_t generation) {
    ALONE_VOID(core_enter(engine->core, generation));
}

void engine_others_reached(struct engine *engine, int64_t iteration) {
    ALONE_VOID(core_others_reached(engine->core, iteration));
}

void engine_regroup(struct engine *engine, uint32_t generation) {
    ALONE_VOID(core_regroup(engine->core, generation));
}

int engine_resume(struct engine *engine, double now) {
    ALONE(int, core_resume(engine->core, now));
}

double engine_deadline_s(struct engine *engine) {
    ALONE(double, core_deadline_s(engine->core));
}

int64_t engine_next_results(struct engine *engine, int64_t iteration) {
    ALONE(int64_t, core_next_results(engine->core, iteration));
}

int64_t engine_results(struct engine *engine, int64_t iteration, uint32_t *blocks, struct result *results) {
    ALONE(int64_t, core_results(engine->core, iteration, blocks, results));
}
