#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct host *host_open(struct machine *machine, struct core *core, struct link *link, double packet_s, double mbps,
                       int64_t burst_bytes, double late_s, int64_t news, int64_t timer) {
    struct host *host = wanted(sizeof *host);
    host->machine = machine;
    host->core = core;
    host->link = link;
    host->packet_s = packet_s;
    host->news = news;
    host->timer = timer;
    pacer_open(&host->pacer, mbps, burst_bytes, late_s);
    host->due_s = INFINITY;
    return host;
}

/* The frame that leaves the pacer next; NULL: none waits. */
static struct frame *next_of(const struct host *host) {
    const int64_t next = pacer_next(&host->pacer);
    return next < 0 ? NULL : (struct frame *)(intptr_t)next;
}

void host_close(struct host *host) {
    for (struct frame *frame; (frame = next_of(host)); pacer_drop(&host->pacer))
        free(frame);
    frames_free(&host->leaving);
    pacer_close(&host->pacer);
    free(host);
}

/* -- sending */

enum { JOINED_BYTES = 65000 }; /* as in host/kofn_host/engine/datagrams.c */

static int64_t bytes_of(const struct frame *frame) {
    return KOFN_HEADER_BYTES + frame->size;
}

/* Put leaving packets on the link, together where the engine coalesces them (GSO): packets of one size, of which the last may
 * be shorter. */
static void flush(struct host *host) {
    while (host->leaving.first) {
        struct frames together = {0};
        int64_t bytes = 0;
        do {
            bytes += bytes_of(host->leaving.first);
            frames_add(&together, frames_next(&host->leaving));
        } while (host->leaving.first && together.last->size == together.first->size &&
                 host->leaving.first->size <= together.first->size &&
                 bytes + bytes_of(host->leaving.first) <= JOINED_BYTES);
        link_send_together(host->link, &together);
    }
}

static int64_t request_of(const struct frame *frame) {
    return (int64_t)frame->header.block * KOFN_PARTS + frame->header.part;
}

/* Return whether a frame must still be sent: its request is in flight and was not encoded again, or the frame has launch 0 (a
 * slot query or a probe). The engine, too, drops all other frames. */
static int is_wanted(const struct core *core, const struct frame *frame) {
    const struct flight *flight = core->in_flight.by_request[request_of(frame)];
    return !frame->launch || (flight && flight->launch == llabs(frame->launch));
}

static void leave(struct host *host, struct frame *frame) {
    if (!frame->launch)
        core_probe_leaves(host->core, request_of(frame), host->pacer.left_bytes, host->machine->clock->now_s);
    if (is_wanted(host->core, frame))
        frames_add(&host->leaving, frame);
    else
        free(frame);
}

static int64_t release(void *whom, void *what);

/* If packets wait, set the timer at which some of them leave. */
static void set_pacer(struct host *host) {
    struct clock *clock = host->machine->clock;
    pacer_set(&host->pacer, clock->now_s);
    if (host->pacer.count && !host->rings) {
        host->rings = 1;
        clock_at(clock, host->pacer.rings_s, release, host, NULL);
    }
}

static int64_t release(void *whom, void *what) {
    struct host *host = whom;
    const double now_s = host->machine->clock->now_s;
    (void)what;
    host->rings = 0;
    host->pacer.rings_s = INFINITY;
    for (struct frame *frame; (frame = next_of(host));) {
        if (!is_wanted(host->core, frame)) {
            pacer_drop(&host->pacer);
            free(frame);
        } else if (pacer_release(&host->pacer, now_s) >= 0) {
            if (now_s > frame->leaves_s + PAUSE_S) /* heavier packets have passed this one */
                core_mark_sent_at(host->core, request_of(frame), frame->launch, now_s);
            leave(host, frame);
        } else {
            break;
        }
    }
    set_pacer(host);
    flush(host);
    return 0;
}

static void pace(struct host *host, struct frame *frame) {
    frame->leaves_s =
        pacer_send(&host->pacer, (intptr_t)frame, frame->link_bytes, frame->header.weight, host->machine->clock->now_s);
    if (frame->leaves_s < 0)
        abort(); /* no memory */
    if (frame->leaves_s == 0)
        leave(host, frame);
    else
        core_mark_sent_at(host->core, request_of(frame), frame->launch, frame->leaves_s);
}

/* Finish making a packet; packets made in a row leave when the last one is made. */
static int64_t made(void *whom, void *what) {
    struct host *host = whom;
    if (pacer_is_on(&host->pacer))
        pace(host, what);
    else
        leave(host, what);
    if (--host->making)
        return 0;
    if (pacer_is_on(&host->pacer))
        set_pacer(host);
    flush(host);
    return 0;
}

void host_rate(struct host *host, double mbps, int64_t burst_bytes, double late_s) {
    pacer_rate(&host->pacer, mbps, burst_bytes, late_s, host->machine->clock->now_s);
}

int64_t host_queued(const struct host *host) {
    return host->pacer.count;
}

static void make(struct host *host, const struct instruction *wanted_sent) {
    const struct header header = header_read(wanted_sent->header);
    struct frame *frame = frame_of(&header, wanted_sent->values, (int32_t)wanted_sent->size);
    frame->launch = wanted_sent->launch;
    frame->link_bytes = core_link_bytes(host->core, wanted_sent->header, wanted_sent->size);
    host->making++;
    machine_work(host->machine, host->packet_s, made, host, frame);
}

void host_send(struct host *host) {
    struct core *core = host->core;
    int64_t left = 0;
    for (int64_t at = 0; at < core->instructions_count; at++)
        if (core->instructions[at].kind == SEND) {
            make(host, core->instructions + at);
            core->urgent_count--;
        } else
            core->instructions[left++] = core->instructions[at];
    core->instructions_count = left;
}

/* -- receiving */

static int is_over(const struct core *core) {
    return !core->open_count || core_left_behind(core);
}

static int hear(struct core *core, const struct frame *frame, double now_s) {
    struct packet packet = {.header = frame->header, .body = core_buffer(core), .size = frame->size};
    if (!packet.body)
        abort(); /* no memory */
    const int64_t kept = frame->size < core->history.room ? frame->size : core->history.room;
    memcpy(packet.body, frame->body, (size_t)kept);
    const int failed = core_packets_in(core, &packet, 1, now_s);
    if (!packet.taken)
        core_release(core, packet.body);
    return failed;
}

/* Finish reading a packet. */
static int64_t read_frame(void *whom, void *what) {
    struct host *host = whom;
    const int was_over = is_over(host->core);
    host->failed = hear(host->core, what, host->machine->clock->now_s);
    free(what);
    if (host->failed || host->core->urgent_count || host->attentive || is_over(host->core) != was_over)
        return host->news;
    host_set_timer(host);
    return 0;
}

static void take(void *whom, struct frame *frame) {
    struct host *host = whom;
    machine_work(host->machine, host->packet_s, read_frame, host, frame);
}

void host_from(struct host *host, struct link *link) {
    link_lead(link, take, host);
}

void host_put(struct host *host, const uint8_t *header, const uint8_t *body, int64_t size) {
    const struct header read = header_read(header);
    take(host, frame_of(&read, body, (int32_t)size));
}

/* -- the deadline */

struct ring {
    int64_t number;
};

static int64_t ring(void *whom, void *what) {
    struct host *host = whom;
    const int64_t number = ((struct ring *)what)->number;
    free(what);
    if (number != host->timers)
        return 0;
    host->due_s = INFINITY;
    return host->timer;
}

void host_set_timer(struct host *host) {
    const double deadline_s = core_deadline_s(host->core);
    if (deadline_s == INFINITY || (host->due_s <= deadline_s && deadline_s < host->due_s + POSTPONED_S))
        return;
    struct ring *set = wanted(sizeof *set);
    set->number = ++host->timers;
    host->due_s = deadline_s;
    clock_at(host->machine->clock, deadline_s, ring, host, set);
}
