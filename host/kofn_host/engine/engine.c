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

enum { AT_ONCE = 64, LEAVING = 256, PORTS = 2 };
enum { FEW = 8 }; /* while more blocks may close, at least 1 / FEW of a full batch of closed blocks is reported at a time */
enum { GATHER_FROM = 16, GATHER_NS = 50000 }; /* wait after the first answer, if at least GATHER_FROM requests are in flight */
#define CHECKSUM_AT (KOFN_AT_CHECKSUM - KOFN_FRAME_BYTES)
#define LEAST_WAIT_S 50e-6 /* the shortest wait: the poll's own time */
#define TELL_S 5e-3        /* the longest time that a closed block waits to be reported together with others */

/* A core, and the news for its caller. */
struct port {
    struct engine *engine;
    struct core *core;
    int news_fd;
    struct instruction *news;
    int64_t news_count, news_capacity;
    int told;         /* news_fd is readable */
    int64_t batch;    /* closed blocks that are reported together while more are open; 0: none are reported */
    double tell_by_s; /* the deadline for reporting closed blocks; INFINITY: none are closed */
    int64_t wanted;   /* signal news_fd when fewer contributions wait; 0: no request */
    int64_t behind;   /* the iteration in which the others were last reported to be ahead */
    struct reduction *reduction; /* NULL: the caller encodes, settles and averages */
    int64_t averaged;            /* blocks that the reduction has averaged since the last report */
    int64_t awaited, awaited_end; /* blocks whose means are awaited, from the first missing mean on; equal: none */

    struct packet packets[AT_ONCE]; /* a batch of received packets */
    int64_t places[AT_ONCE], count;
};

/* A packet in the send queue, with the data to send it if its request is still in flight. */
struct outgoing {
    const struct port *port;
    int64_t request, launch, size;
    double leaves_s; /* when the packet is expected to leave */
    uint8_t head[KOFN_HEADER_BYTES];
    int64_t next; /* the next unused entry */
};

struct engine {
    struct port ports[PORTS];
    int64_t ports_count, room; /* bytes of the longest result, the same for all ports */
    int socket, wake_fd;
    int32_t joins; /* as in datagrams_send() */
    int running;
    pthread_t thread;
    pthread_mutex_t lock;
    int closing;
    char error[ERROR_BYTES];
    struct traffic traffic;

    struct pacer pacer;
    struct outgoing *outgoing; /* packets that wait for the pacer */
    int64_t outgoing_capacity, unused;

    struct incoming *incoming;
    double read_s; /* all datagrams that arrived before this time are read */
    uint8_t *bodies[AT_ONCE];
    uint8_t heads[AT_ONCE * KOFN_HEADER_BYTES];

    struct leaving { /* packets to send once the lock is released */
        int64_t count;
        uint8_t heads[LEAVING * KOFN_HEADER_BYTES];
        const uint8_t *bodies[LEAVING];
        int64_t sizes[LEAVING];
    } leaving;
};

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
                                        leaving->sizes, leaving->count, NULL, 0, left, &engine->joins, &error);
    for (int64_t at = 0; at < leaving->count; at++)
        engine->traffic.bytes_sent += left[at] * (KOFN_HEADER_BYTES + leaving->sizes[at]);
    engine->traffic.packets_sent += took;
    engine->traffic.send_failures += leaving->count - took;
    leaving->count = 0;
}

/* The values of a request if this launch is still in flight, else NULL; zeros for launch 0: a slot query or a probe. */
static const uint8_t *values_of(const struct core *core, int64_t request, int64_t launch) {
    const struct flight *flight = core->in_flight.by_request[request];
    if (!launch)
        return core->zeros;
    return flight && flight->launch == llabs(launch) ? flight->values : NULL;
}

static void leave(const struct port *port, int64_t request, int64_t launch, const uint8_t *head, int64_t size, double now) {
    const uint8_t *values = values_of(port->core, request, launch);
    struct leaving *leaving = &port->engine->leaving;
    if (!values)
        return;
    if (!launch)
        core_probe_leaves(port->core, request, port->engine->pacer.left_bytes, now);
    memcpy(leaving->heads + leaving->count * KOFN_HEADER_BYTES, head, KOFN_HEADER_BYTES);
    leaving->bodies[leaving->count] = values;
    leaving->sizes[leaving->count] = size;
    if (++leaving->count == LEAVING)
        flush(port->engine);
}

/* An entry for a waiting packet; -1 without memory. */
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

static void send_paced(const struct port *port, const struct instruction *send, double now) {
    struct engine *engine = port->engine;
    const int64_t request = send->block * KOFN_PARTS + send->part, place = place_for(engine);
    const int64_t bytes = core_link_bytes(port->core, send->header, send->size);
    const int64_t weight = header_read(send->header).weight;
    const double leaves_s = place < 0 ? -1 : pacer_send(&engine->pacer, place, bytes, weight, now);
    if (leaves_s < 0) {
        fail(engine, "no memory for packets that wait for their turn");
        return;
    }
    if (leaves_s == 0) {
        give_back(engine, place);
        leave(port, request, send->launch, send->header, send->size, now);
        return;
    }
    struct outgoing *waits = engine->outgoing + place;
    waits->port = port, waits->request = request, waits->launch = send->launch, waits->size = send->size;
    waits->leaves_s = leaves_s;
    memcpy(waits->head, send->header, sizeof waits->head);
    core_mark_sent_at(port->core, request, send->launch, leaves_s);
}

/* Let the packets leave whose turn has come. A packet whose request is answered meanwhile costs no time. */
static void release(struct engine *engine, double now) {
    for (int64_t place; (place = pacer_next(&engine->pacer)) >= 0; give_back(engine, place)) {
        const struct outgoing *waits = engine->outgoing + place;
        if (!values_of(waits->port->core, waits->request, waits->launch)) {
            pacer_drop(&engine->pacer);
            continue;
        }
        if (pacer_release(&engine->pacer, now) < 0)
            break;
        if (now > waits->leaves_s + PAUSE_S) /* heavier packets have passed this one */
            core_mark_sent_at(waits->port->core, waits->request, waits->launch, now);
        leave(waits->port, waits->request, waits->launch, waits->head, waits->size, now);
    }
    engine->pacer.rings_s = INFINITY;
}

/* -- the core's instructions */

static void add_news(struct port *port, const struct instruction *news) {
    if (port->news_count == port->news_capacity) {
        const int64_t capacity = port->news_capacity ? 2 * port->news_capacity : AT_ONCE;
        void *larger = realloc(port->news, (size_t)capacity * sizeof *news);
        if (!larger) {
            fail(port->engine, "no memory for instructions");
            return;
        }
        port->news = larger;
        port->news_capacity = capacity;
    }
    port->news[port->news_count++] = *news;
    if (news->kind != DELIVER)
        port->tell_by_s = 0;
}

/* Whether to report the closed blocks now: the fewer blocks are open, the smaller is a batch; at once if no more can close. */
static int enough(const struct port *port, double now) {
    const int64_t open = port->core->open_count / 2, few = port->batch / FEW;
    const int64_t wanted = open < few ? few : open < port->batch ? open : port->batch;
    return port->news_count + port->averaged >= wanted || port->tell_by_s <= now || !port->core->in_flight.count;
}

/* The number of news, from the first on, that the reduction can settle in one call. */
static int64_t closed_first(const struct port *port) {
    int64_t count = 0;
    while (port->reduction && count < port->news_count && count < REDUCED_AT_ONCE && port->news[count].kind == DELIVER &&
           port->news[count].iteration == port->reduction->iteration)
        count++;
    return count;
}

/* Whether fewer contributions wait than port_want() asked for. */
static int has_room(const struct port *port) {
    return port->core->waiting_count + port->engine->pacer.count < port->wanted;
}

/* Whether there are news that are reported in batches. */
static int is_any(const struct port *port) {
    return (port->averaged && port->awaited < port->awaited_end) || (port->news_count && !closed_first(port));
}

/* Whether all awaited means are complete. */
static int has_come(struct port *port) {
    if (!port->reduction || port->awaited == port->awaited_end)
        return 0;
    const uint8_t *closed = port->reduction->sums->closed;
    while (port->awaited < port->awaited_end && closed[port->awaited])
        port->awaited++;
    return port->awaited == port->awaited_end;
}

/* Make news_fd readable if there is something to report. */
static void signal_news(struct port *port, double now) {
    const struct core *core = port->core;
    const int behind = core_left_behind(core) && port->behind != core->iteration;
    const int fewer = has_room(port), come = has_come(port), any = is_any(port);
    if (any && port->tell_by_s == INFINITY)
        port->tell_by_s = now + TELL_S;
    if (!(any && enough(port, now)) && !port->engine->error[0] && !behind && !fewer && !come)
        return;
    if (behind)
        port->behind = core->iteration;
    port->wanted = fewer ? 0 : port->wanted;
    if (!port->told) {
        port->told = 1;
        signal_fd(port->news_fd);
    }
}

static void follow(struct port *port, const struct instruction *next, double now) {
    if (next->kind == DELIVER && !port->batch)
        return;
    if (next->kind != SEND)
        add_news(port, next);
    else if (pacer_is_on(&port->engine->pacer))
        send_paced(port, next, now);
    else
        leave(port, next->block * KOFN_PARTS + next->part, next->launch, next->header, next->size, now);
}

static void follow_all(struct engine *engine, double now) {
    for (struct port *port = engine->ports; port < engine->ports + engine->ports_count; port++) {
        const struct core *core = port->core;
        for (int64_t at = 0; at < core->instructions_count; at++)
            follow(port, core->instructions + at, now);
        core_done(port->core);
    }
    if (pacer_is_on(&engine->pacer))
        pacer_set(&engine->pacer, now);
    for (struct port *port = engine->ports; port < engine->ports + engine->ports_count; port++)
        signal_news(port, now);
}

/* -- in */

/* Whether a datagram is a valid packet; `header` gets its header. */
static int is_packet(struct engine *engine, const uint8_t *head, int64_t size, uint16_t sum, struct header *header) {
    struct traffic *traffic = &engine->traffic;
    if (size < KOFN_HEADER_BYTES)
        return traffic->short_packets++, 0;
    *header = header_read(head);
    if (header->version != KOFN_VERSION)
        return traffic->other_version++, 0;
    const int64_t body = size - KOFN_HEADER_BYTES;
    if (body != header->bitmaps * KOFN_MEMBERS_BYTES + header->words * KOFN_WORD_BYTES)
        return traffic->wrong_length++, 0;
    if (body > engine->room)
        return traffic->wrong_length++, 0; /* a packet of another job; if it is of this job, a slot query finds the mismatch */
    return sum ? (traffic->damaged++, 0) : 1;
}

/* The port of the packet's job; the first port counts packets of unknown jobs. */
static struct port *port_of(struct engine *engine, const struct header *header) {
    for (int64_t at = 1; at < engine->ports_count; at++)
        if (engine->ports[at].core->job == header->job)
            return engine->ports + at;
    return engine->ports;
}

/* Provide a buffer for each body; returns whether there was memory. */
static int with_buffers(struct engine *engine, struct core *core) {
    for (int at = 0; at < AT_ONCE; at++)
        if (!engine->bodies[at] && !(engine->bodies[at] = core_buffer(core)))
            return 0;
    return 1;
}

/* Pass the received packets to their core, and get a new buffer for each packet that the core keeps. */
static void packets_in(struct port *port, double now) {
    struct engine *engine = port->engine;
    if (port->count && core_packets_in(port->core, port->packets, port->count, now))
        fail(engine, core_error(port->core));
    for (int64_t at = 0; at < port->count; at++)
        if (port->packets[at].taken)
            engine->bodies[port->places[at]] = NULL;
    port->count = 0;
    if (!with_buffers(engine, port->core))
        fail(engine, "no memory for received packets");
}

/* Handle a batch of datagrams; returns whether there may be more datagrams. */
static int receive(struct engine *engine) {
    int64_t sizes[AT_ONCE];
    uint16_t sums[AT_ONCE];
    engine->read_s = clock_s();
    const int64_t came = datagrams_receive(engine->incoming, engine->heads, KOFN_HEADER_BYTES, engine->bodies, engine->room,
                                           AT_ONCE, sizes, sums, NULL);
    pthread_mutex_lock(&engine->lock);
    const double now = clock_s();
    for (int64_t at = 0; at < came; at++) {
        struct header header;
        engine->traffic.packets_received++;
        engine->traffic.bytes_received += sizes[at];
        if (is_packet(engine, engine->heads + at * KOFN_HEADER_BYTES, sizes[at], sums[at], &header)) {
            struct port *port = port_of(engine, &header);
            port->packets[port->count] = (struct packet){header, engine->bodies[at], (int32_t)(sizes[at] - KOFN_HEADER_BYTES), 0};
            port->places[port->count++] = at;
        }
    }
    for (struct port *port = engine->ports; port < engine->ports + engine->ports_count; port++)
        packets_in(port, now);
    follow_all(engine, now);
    pthread_mutex_unlock(&engine->lock);
    flush(engine);
    return came == AT_ONCE && !engine->error[0];
}

/* -- reductions */

/* Remove the first news. */
static void forget(struct port *port, int64_t count) {
    port->news_count -= count;
    if (count && port->news_count)
        memmove(port->news, port->news + count, (size_t)port->news_count * sizeof *port->news);
}

/* Settle and average closed blocks; returns whether there were closed blocks. */
static int settle(struct port *port) {
    const int64_t count = closed_first(port);
    int64_t blocks[REDUCED_AT_ONCE];
    struct result results[REDUCED_AT_ONCE];
    if (!count)
        return 0;
    for (int64_t at = 0; at < count; at++) {
        blocks[at] = port->news[at].block;
        results[at] = history_result(&port->core->history, port->news[at].iteration, blocks[at]);
    }
    if (!reduction_closed(port->reduction, blocks, results, count))
        return port->reduction = NULL, 1; /* the caller will find the error */
    port->averaged += count;
    return forget(port, count), 1;
}

/* Encode and contribute a portion; returns whether there was anything to encode, and room for it. */
static int encode(struct port *port, double now) {
    struct reduction *reduction = port->reduction;
    const struct core *core = port->core;
    struct packed ready[REDUCED_AT_ONCE];
    if (!reduction || reduction->iteration != core->iteration || !core->open_count || core_left_behind(core))
        return 0;
    const int64_t room = reduction->lookahead - core->waiting_count - port->engine->pacer.count;
    const int64_t portion = (reduction->lookahead + 1) / 2;
    const int64_t count = room > 0 ? reduction_next(reduction, ready, room < portion ? room : portion) : 0;
    if (!count)
        return 0;
    const double begin_s = clock_s();
    if (core_contribute(port->core, ready, count, now, 0, 1, (int32_t)reduction->lanes))
        fail(port->engine, core_error(core));
    reduction->send_s += clock_s() - begin_s;
    return 1;
}

/* Release due packets and do a portion of the reductions' work; returns whether there may be more work. */
static int reduce(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    const double now = clock_s();
    int done = engine->pacer.rings_s <= now;
    if (done)
        release(engine, now);
    for (struct port *port = engine->ports; port < engine->ports + engine->ports_count; port++)
        done |= settle(port) | encode(port, now);
    if (done)
        follow_all(engine, now);
    pthread_mutex_unlock(&engine->lock);
    flush(engine);
    return done && !engine->error[0];
}

/* -- the thread */

/* Run due timers and follow the callers' instructions; returns the next deadline. */
static double run_timers(struct engine *engine) {
    const double now = clock_s();
    for (struct port *port = engine->ports; port < engine->ports + engine->ports_count; port++)
        if (core_deadline_s(port->core) <= engine->read_s && core_timer(port->core, now)) /* later answers are unread */
            fail(engine, core_error(port->core));
    follow_all(engine, now);
    double due_s = engine->pacer.rings_s;
    for (const struct port *port = engine->ports; port < engine->ports + engine->ports_count; port++)
        due_s = fmin(due_s, fmin(core_deadline_s(port->core), port->told || !is_any(port) ? INFINITY : port->tell_by_s));
    return due_s;
}

static int64_t in_flight(const struct engine *engine) {
    int64_t count = 0;
    for (int64_t at = 0; at < engine->ports_count; at++)
        count += engine->ports[at].core->in_flight.count;
    return count;
}

static struct timespec until(double due_s) {
    const double wait_s = fmin(3600, fmax(LEAST_WAIT_S, due_s - clock_s()));
    return (struct timespec){.tv_sec = (time_t)wait_s, .tv_nsec = (long)(1e9 * (wait_s - floor(wait_s)))};
}

static void *run(void *argument) {
    struct engine *engine = argument;
    pthread_setname_np(pthread_self(), "kofn-engine");
    struct pollfd waited[] = {{.fd = engine->socket, .events = POLLIN}, {.fd = engine->wake_fd, .events = POLLIN}};
    for (;;) {
        while (receive(engine) | reduce(engine)) /* read all datagrams before a timeout fires */
            ;
        pthread_mutex_lock(&engine->lock);
        const double due_s = run_timers(engine);
        const int closing = engine->closing || engine->error[0];
        const int many = in_flight(engine) >= GATHER_FROM;
        pthread_mutex_unlock(&engine->lock);
        flush(engine);
        if (closing)
            return NULL;
        const struct timespec wait = until(due_s);
        ppoll(waited, 2, &wait, NULL);
        if (many && waited[0].revents && !waited[1].revents)
            nanosleep(&(struct timespec){.tv_nsec = GATHER_NS}, NULL);
        if (waited[1].revents)
            drain_fd(engine->wake_fd);
    }
}

/* -- for callers */

/* Make a recursive lock. */
static void lock_open(pthread_mutex_t *lock) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static int port_open(struct port *port, struct engine *engine, struct core *core, int64_t batch) {
    *port = (struct port){.engine = engine, .core = core, .batch = batch, .tell_by_s = INFINITY};
    port->news_fd = eventfd(0, EFD_CLOEXEC);
    return port->news_fd >= 0 && core->history.room == engine->room;
}

static void port_close(struct port *port) {
    close(port->news_fd);
    free(port->news);
}

struct engine *engine_open(struct core *const *cores, const int64_t *batches, int64_t count, int socket, double mbps,
                           int64_t burst_bytes, double late_s, int32_t joins) {
    struct engine *engine = count <= PORTS ? calloc(1, sizeof *engine) : NULL;
    if (!engine)
        return NULL;
    engine->socket = socket;
    engine->joins = joins;
    engine->room = cores[0]->history.room;
    engine->unused = -1;
    engine->wake_fd = eventfd(0, EFD_CLOEXEC);
    pacer_open(&engine->pacer, mbps, burst_bytes, late_s);
    lock_open(&engine->lock);
    engine->incoming = incoming_open(socket);
    int opened = engine->wake_fd >= 0 && engine->incoming;
    while (opened && engine->ports_count < count) {
        const int64_t at = engine->ports_count++;
        opened = port_open(engine->ports + at, engine, cores[at], batches[at]);
    }
    engine->running = opened && with_buffers(engine, cores[0]) && !pthread_create(&engine->thread, NULL, run, engine);
    return engine->running ? engine : (engine_close(engine), NULL);
}

void engine_close(struct engine *engine) {
    if (engine->running) {
        pthread_mutex_lock(&engine->lock);
        engine->closing = 1;
        pthread_mutex_unlock(&engine->lock);
        signal_fd(engine->wake_fd);
        pthread_join(engine->thread, NULL);
    }
    for (int at = 0; at < AT_ONCE; at++)
        free(engine->bodies[at]);
    for (int64_t at = 0; at < engine->ports_count; at++)
        port_close(engine->ports + at);
    incoming_close(engine->incoming);
    close(engine->wake_fd);
    pthread_mutex_destroy(&engine->lock);
    pacer_close(&engine->pacer);
    free(engine->outgoing);
    free(engine);
}

struct port *engine_port(struct engine *engine, int64_t at) {
    return engine->ports + at;
}

const char *engine_error(const struct engine *engine) {
    return engine->error;
}

int engine_error_is_cores(const struct engine *engine) {
    int found = 0;
    for (int64_t at = 0; at < engine->ports_count; at++)
        found |= !strcmp(engine->error, core_error(engine->ports[at].core));
    return found;
}

const struct traffic *engine_traffic(const struct engine *engine) {
    return &engine->traffic;
}

int port_news_fd(const struct port *port) {
    return port->news_fd;
}

static int64_t take(struct port *port, struct instruction *into, struct result *results, int64_t room) {
    const int64_t count = port->news_count < room ? port->news_count : room;
    if (port->told)
        drain_fd(port->news_fd);
    port->told = 0;
    port->tell_by_s = INFINITY;
    port->averaged = 0;
    for (int64_t at = 0; at < count; at++) {
        into[at] = port->news[at];
        if (into[at].kind == DELIVER)
            results[at] = history_result(&port->core->history, into[at].iteration, into[at].block);
    }
    forget(port, count);
    return port->engine->error[0] ? -1 : count;
}

int64_t port_queued(const struct port *port) {
    return pacer_is_on(&port->engine->pacer) ? port->engine->pacer.count + port->core->urgent_count : 0;
}

/* -- with the lock held */

/* Unlock, and wake the thread if it may have something to do. */
static void leave_core(struct port *port) {
    const int wake = port->core->instructions_count > 0 || has_room(port);
    pthread_mutex_unlock(&port->engine->lock);
    if (wake)
        signal_fd(port->engine->wake_fd);
}

#define ALONE(type, call) \
    do { \
        pthread_mutex_lock(&port->engine->lock); \
        const type returned = call; \
        leave_core(port); \
        return returned; \
    } while (0)

#define ALONE_VOID(call) \
    do { \
        pthread_mutex_lock(&port->engine->lock); \
        call; \
        leave_core(port); \
    } while (0)

int64_t port_take(struct port *port, struct instruction *into, struct result *results, int64_t room) {
    ALONE(int64_t, take(port, into, results, room));
}

void port_rate(struct port *port, double mbps, int64_t burst_bytes, double late_s, double now) {
    ALONE_VOID(pacer_rate(&port->engine->pacer, mbps, burst_bytes, late_s, now));
    signal_fd(port->engine->wake_fd);
}

void port_want(struct port *port, int64_t fewer) {
    ALONE_VOID(port->wanted = fewer);
}

void port_reduce(struct port *port, struct reduction *reduction) {
    pthread_mutex_lock(&port->engine->lock);
    port->reduction = reduction;
    port->averaged = 0;
    pthread_mutex_unlock(&port->engine->lock);
    signal_fd(port->engine->wake_fd);
}

void port_await(struct port *port, int64_t first, int64_t end) {
    pthread_mutex_lock(&port->engine->lock);
    port->awaited = first, port->awaited_end = end;
    pthread_mutex_unlock(&port->engine->lock);
    signal_fd(port->engine->wake_fd);
}

void port_wake(struct port *port) {
    signal_fd(port->engine->wake_fd);
}

void port_hold(struct port *port) {
    pthread_mutex_lock(&port->engine->lock);
}

void port_release(struct port *port) {
    leave_core(port);
}

int port_begin(struct port *port, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
               int32_t lanes) {
    ALONE(int, core_begin(port->core, iteration, now, blocks, count, first, lanes));
}

int port_jump(struct port *port, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
              int32_t lanes) {
    ALONE(int, core_jump(port->core, iteration, now, blocks, count, first, lanes));
}

int port_contribute(struct port *port, const struct packed *ready, int64_t count, double now, int32_t part,
                    int32_t counts, int32_t uses) {
    ALONE(int, core_contribute(port->core, ready, count, now, part, counts, uses));
}

int port_results_in(struct port *port, int64_t iteration, const int64_t *blocks, const struct result *results, int64_t count,
                    double now) {
    ALONE(int, core_results_in(port->core, iteration, blocks, results, count, now));
}

int port_ask_slot(struct port *port) {
    ALONE(int, core_ask_slot(port->core));
}

void port_withdraw(struct port *port, int64_t *requests, int64_t count) {
    ALONE_VOID(core_withdraw(port->core, requests, count));
}

void port_in_pieces(struct port *port, const int64_t *level) {
    ALONE_VOID(core_in_pieces(port->core, level));
}

int port_owned(struct port *port, const int64_t *owner, int64_t span, double now) {
    ALONE(int, core_owned(port->core, owner, span, now));
}

void port_received(struct port *port, const int64_t *recipient) {
    ALONE_VOID(core_received(port->core, recipient));
}

void port_enter(struct port *port, uint32_t generation) {
    ALONE_VOID(core_enter(port->core, generation));
}

int port_follow(struct port *port, int32_t follows, double now) {
    ALONE(int, core_follow(port->core, follows, now));
}

void port_others_reached(struct port *port, int64_t iteration) {
    ALONE_VOID(core_others_reached(port->core, iteration));
}

void port_regroup(struct port *port, uint32_t generation) {
    ALONE_VOID(core_regroup(port->core, generation));
}

int port_resume(struct port *port, double now) {
    ALONE(int, core_resume(port->core, now));
}

int port_take_link_wait(struct port *port, double now, struct link_wait *taken) {
    ALONE(int, core_take_link_wait(port->core, now, taken));
}

double port_deadline_s(struct port *port) {
    ALONE(double, core_deadline_s(port->core));
}

int64_t port_next_results(struct port *port, int64_t iteration) {
    ALONE(int64_t, core_next_results(port->core, iteration));
}

int64_t port_results(struct port *port, int64_t iteration, uint32_t *blocks, struct result *results) {
    ALONE(int64_t, core_results(port->core, iteration, blocks, results));
}
