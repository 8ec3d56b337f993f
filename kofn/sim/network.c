#include "network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double later(double one_s, double other_s) {
    return one_s > other_s ? one_s : other_s;
}

static struct frame *frame_open(const struct header *header, int32_t size) {
    struct frame *frame = wanted(sizeof *frame + (size_t)size);
    frame->header = *header;
    frame->size = size;
    return frame;
}

struct frame *frame_of(const struct header *header, const uint8_t *body, int32_t size) {
    struct frame *frame = frame_open(header, size);
    memcpy(frame->body, body, (size_t)size);
    return frame;
}

static struct frame *frame_read(const uint8_t *header, const uint8_t *body, int64_t size) {
    const struct header read = header_read(header);
    return frame_of(&read, body, (int32_t)size);
}

void frames_add(struct frames *frames, struct frame *frame) {
    frame->next = NULL;
    *(frames->first ? &frames->last->next : &frames->first) = frame;
    frames->last = frame;
}

struct frame *frames_next(struct frames *frames) {
    struct frame *first = frames->first;
    if (first)
        frames->first = first->next;
    return first;
}

void frames_free(struct frames *frames) {
    for (struct frame *frame; (frame = frames_next(frames));)
        free(frame);
}

/* -- processors */

struct machine *machine_open(struct clock *clock, int64_t cores) {
    struct machine *machine = wanted(sizeof *machine + (size_t)cores * sizeof *machine->free_s);
    machine->clock = clock;
    machine->cores = cores;
    return machine;
}

void machine_close(struct machine *machine) {
    free(machine);
}

double machine_spend(struct machine *machine, double duration_s) {
    const double now_s = machine->clock->now_s;
    if (!machine->cores)
        return now_s + duration_s;
    double *first = machine->free_s;
    for (int64_t core = 1; core < machine->cores; core++)
        if (machine->free_s[core] < *first)
            first = machine->free_s + core;
    return *first = later(now_s, *first) + duration_s;
}

void machine_work(struct machine *machine, double duration_s, happening *happen, void *whom, struct frame *frame) {
    clock_at(machine->clock, machine_spend(machine, duration_s), happen, whom, frame);
}

/* -- links */

struct link *link_open(struct clock *clock, double mbps, int64_t call) {
    struct link *link = wanted(sizeof *link);
    link->clock = clock;
    link->byte_s = mbps > 0 ? 8e-6 / mbps : 0;
    link->free_s = -INFINITY;
    link->call = call;
    return link;
}

void link_close(struct link *link) {
    frames_free(&link->underway);
    frames_free(&link->arrived);
    free(link);
}

void link_lead(struct link *link, void (*take)(void *whom, struct frame *frame), void *whom) {
    link->take = take;
    link->whom = whom;
}

static int64_t bytes_of(const struct frame *frame) {
    return KOFN_FRAME_BYTES + KOFN_HEADER_BYTES + frame->size;
}

static double burst_s(const struct link *link) {
    return link->byte_s ? later(BURST_S, BURST_BYTES * link->byte_s) : 0;
}

/* Deliver a packet to the other end, unless a lower rate has postponed it. */
static int64_t arrive(void *whom, void *what) {
    struct link *link = whom;
    (void)what;
    if (!link->underway.first || link->underway.first->leaves_s + LATENCY_S > link->clock->now_s)
        return 0;
    struct frame *frame = frames_next(&link->underway);
    link->queued -= bytes_of(frame);
    if (link->take) {
        link->take(link->whom, frame);
        return 0;
    }
    frames_add(&link->arrived, frame);
    return link->call;
}

static void pass(struct link *link, struct frame *frame, double leaves_s) {
    frame->leaves_s = leaves_s;
    link->queued += bytes_of(frame);
    frames_add(&link->underway, frame);
    clock_at(link->clock, leaves_s + LATENCY_S, arrive, link, NULL);
}

/* Whether the queue has room for so many bytes. */
static int has_room(const struct link *link, int64_t bytes) {
    return !link->byte_s || (double)(link->queued + bytes) <= later(QUEUE_BYTES, QUEUE_S / link->byte_s);
}

void link_send_together(struct link *link, struct frames *frames) {
    const double now_s = link->clock->now_s;
    int64_t bytes = 0;
    for (const struct frame *frame = frames->first; frame; frame = frame->next) {
        link->packets++;
        link->bytes += KOFN_HEADER_BYTES + frame->size;
        bytes += bytes_of(frame);
    }
    const int whole = (double)bytes * link->byte_s <= burst_s(link), room = has_room(link, bytes);
    double paid_s = later(link->free_s, now_s - burst_s(link)) + (whole && room ? (double)bytes * link->byte_s : 0);
    for (struct frame *frame; (frame = frames_next(frames));) {
        if (whole ? !room : !has_room(link, bytes_of(frame))) {
            free(frame);
            continue;
        }
        paid_s += whole ? 0 : (double)bytes_of(frame) * link->byte_s;
        pass(link, frame, later(now_s, paid_s));
    }
    link->free_s = paid_s;
}

void link_send(struct link *link, struct frame *frame) {
    struct frames one = {0};
    frames_add(&one, frame);
    link_send_together(link, &one);
}

void link_shape(struct link *link, double mbps) {
    const double now_s = link->clock->now_s, before_s = link->byte_s;
    link->byte_s = 8e-6 / mbps;
    if (link->free_s <= now_s)
        return;
    const double longer = link->byte_s / before_s;
    for (struct frame *frame = link->underway.first; frame; frame = frame->next)
        if (frame->leaves_s > now_s) {
            frame->leaves_s = now_s + (frame->leaves_s - now_s) * longer;
            clock_at(link->clock, frame->leaves_s + LATENCY_S, arrive, link, NULL);
        }
    link->free_s = now_s + (link->free_s - now_s) * longer;
}

void link_put(struct link *link, const uint8_t *header, const uint8_t *body, int64_t size) {
    link_send(link, frame_read(header, body, size));
}

int64_t link_arrived(struct link *link, uint8_t *header, uint8_t *body) {
    struct frame *frame = frames_next(&link->arrived);
    if (!frame)
        return -1;
    const int64_t size = frame->size;
    header_write(&frame->header, header);
    memcpy(body, frame->body, (size_t)size);
    free(frame);
    return size;
}

/* -- a switch or a server */

struct star *star_open(struct machine *machine, struct slots *slots, struct leaf *leaf, int64_t size, double packet_s,
                       int64_t call) {
    struct star *star = wanted(sizeof *star);
    star->machine = machine;
    star->slots = slots;
    star->leaf = leaf;
    star->packet_s = packet_s;
    star->call = call;
    star->size = size;
    star->latest = wanted((size_t)size * sizeof *star->latest);
    star->links = wanted((size_t)size * sizeof *star->links);
    star->follows = wanted((size_t)size * sizeof *star->follows);
    return star;
}

void star_close(struct star *star) {
    frames_free(&star->waiting);
    free(star->latest);
    free(star->links);
    free(star->follows);
    free(star);
}

void star_to(struct star *star, int64_t rank, struct link *link) {
    star->links[rank] = link;
}

void star_follow(struct star *star, int64_t rank, int32_t follows) {
    star->follows[rank] = follows;
}

void star_to_root(struct star *star, struct link *link) {
    star->uplink = link;
}

static void taken(void *whom, struct frame *frame) {
    star_take(whom, frame);
}

void star_from(struct star *star, struct link *link) {
    link_lead(link, taken, star);
}

/* Whether the packet is a worker's first contribution, which the controller hears of. */
static int note(struct star *star, const struct header *header, const struct answer *answer) {
    if (!star->call || header->kind != KOFN_CONTRIBUTE || !header->count ||
        header->iteration <= star->latest[header->worker])
        return 0;
    star->latest[header->worker] = header->iteration;
    star->digest[0] = header->worker;
    star->digest[1] = header->iteration;
    star->digest[2] = answer && (answer->header.kind == KOFN_LATE || answer->header.kind == KOFN_STALE);
    return 1;
}

static int is_from_worker(const struct header *header) {
    return header->kind == KOFN_CONTRIBUTE || header->kind == KOFN_PULL;
}

static int answered(struct star *star, const struct frame *frame, struct answer *answer) {
    const struct header *header = &frame->header;
    if (star->slots)
        return slots_handle(star->slots, header, frame->body, frame->size, answer);
    if (is_from_worker(header))
        return leaf_below(star->leaf, header, frame->body, frame->size, answer);
    return leaf_above(star->leaf, header, frame->body, frame->size, answer);
}

static void send_to(struct link *link, const struct answer *answer, int32_t neighbour) {
    const struct header header = answer_header(answer, neighbour);
    const int32_t bitmaps = header.bitmaps * KOFN_MEMBERS_BYTES, size = answer_size(answer, neighbour);
    struct frame *frame = frame_open(&header, bitmaps + size);
    if (bitmaps)
        memcpy(frame->body, answer->bitmaps, (size_t)bitmaps);
    memcpy(frame->body + bitmaps, answer->values, (size_t)size);
    link_send(link, frame);
}

/* Send an answer. Neighbours take turns in being first, so that no rank is faster. */
static void send_answer(struct star *star, const struct answer *answer) {
    if (answer->to == TO_ROOT) {
        send_to(star->uplink, answer, 0);
        return;
    }
    const int32_t count = answer->end - answer->first;
    for (int32_t at = 0; at < count; at++) {
        const struct header *header = &answer->header;
        const uint32_t turn = (header->iteration + header->block + (uint32_t)at) % (uint32_t)count;
        const int32_t neighbour = answer->first + (int32_t)turn;
        if (count == 1 || !star->follows[neighbour])
            send_to(star->links[neighbour], answer, neighbour);
    }
}

/* Answer a packet by the slots' rules; return whether the controller hears of it. */
static int answer_frame(struct star *star, struct frame *frame) {
    struct answer answer;
    const int answers = answered(star, frame, &answer);
    if (answers)
        send_answer(star, &answer);
    const int noted = note(star, &frame->header, answers ? &answer : NULL);
    free(frame);
    return noted;
}

static void handle_next(struct star *star);

static int64_t handle(void *whom, void *what) {
    struct star *star = whom;
    struct frame *frame = frames_next(&star->waiting);
    int noted = 0;
    (void)what;
    if (star->slots || star->leaf)
        noted = answer_frame(star, frame);
    else
        link_send(is_from_worker(&frame->header) ? star->uplink : star->links[frame->header.worker], frame);
    if (star->waiting.first)
        handle_next(star);
    return noted ? star->call : 0;
}

static void handle_next(struct star *star) {
    machine_work(star->machine, star->packet_s, handle, star, NULL);
}

void star_take(struct star *star, struct frame *frame) {
    const int idle = !star->waiting.first;
    frames_add(&star->waiting, frame);
    if (idle)
        handle_next(star);
}

void star_put(struct star *star, const uint8_t *header, const uint8_t *body, int64_t size) {
    star_take(star, frame_read(header, body, size));
}

void star_digest(const struct star *star, int64_t *digest) {
    memcpy(digest, star->digest, sizeof star->digest);
}
