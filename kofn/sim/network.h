/* The network between two protocol cores: the machine's processors, links, and switches.
 *
 * Constants are those of network.py.
 */
#pragma once
#include "clock.h"
#include "leaf.h"
#include "slots.h"

#define LATENCY_S 50e-6
#define BURST_S 2e-3       /* an idle link passes the bytes of this time at once, */
#define BURST_BYTES 36056  /* or these bytes if they are more: burst_bytes() of mininet/interfaces.py */
#define QUEUE_S 0.2        /* a full queue leaves in this time, */
#define QUEUE_BYTES (1 << 20) /* or has these bytes if they are more: queue_bytes() of mininet/interfaces.py */

/* A packet in transit. */
struct frame {
    struct header header;
    int64_t launch;  /* the sender's attempt */
    int64_t link_bytes; /* its size for the sender's pacer */
    double leaves_s; /* time at which it leaves the sender's pacer, then the link */
    struct frame *next;
    int32_t size;
    uint8_t body[]; /* bitmaps and values */
};

struct frame *frame_of(const struct header *header, const uint8_t *body, int32_t size);

struct frames {
    struct frame *first, *last;
};

void frames_add(struct frames *frames, struct frame *frame);
struct frame *frames_next(struct frames *frames);
void frames_free(struct frames *frames);

/* -- processors of all hosts: one task after another, in order of request; 0: every host has its own */

struct machine {
    struct clock *clock;
    int64_t cores;
    double free_s[]; /* when each is free */
};

struct machine *machine_open(struct clock *clock, int64_t cores);
void machine_close(struct machine *machine);
/* Use CPU time of the next free core, and return the time at which it is done. */
double machine_spend(struct machine *machine, double duration_s);
/* The same, followed by an event. */
void machine_work(struct machine *machine, double duration_s, happening *happen, void *whom, struct frame *frame);

/* -- one direction of a link: packets arrive in the order in which they were sent
 *
 * The link is a token bucket with a queue, as the kernel's tbf is: a packet leaves when there are tokens for all its bytes. A
 * packet for which the queue has no room is lost. Coalesced packets are one, unless they are larger than the bucket. */

struct link {
    int64_t packets, bytes;
    struct clock *clock;
    double byte_s;
    double free_s; /* when all bytes that left are paid for; earlier than now: tokens remain */
    int64_t queued; /* bytes */
    struct frames underway, arrived; /* `arrived`: for Python */
    void (*take)(void *whom, struct frame *frame); /* NULL: call number `call` */
    void *whom;
    int64_t call;
};

struct link *link_open(struct clock *clock, double mbps, int64_t call);
void link_close(struct link *link);
void link_lead(struct link *link, void (*take)(void *whom, struct frame *frame), void *whom);
void link_send(struct link *link, struct frame *frame);
/* Send packets that the kernel gets as one: they are one entry of the queue, and leave together. */
void link_send_together(struct link *link, struct frames *frames);
/* Change the rate, also for packets in transit. */
void link_shape(struct link *link, double mbps);
/* link_send() from Python. */
void link_put(struct link *link, const uint8_t *header, const uint8_t *body, int64_t size);
/* Read an arrived packet and return its size; -1: none is left. Arrays have room for the largest. */
int64_t link_arrived(struct link *link, uint8_t *header, uint8_t *body);

/* -- a node that handles one packet after another: a switch alone, the root of a tree, a leaf, a parameter server, or a switch that
 * forwards packets to and from a server. It has a link to each of its workers or leaves; a leaf and a forwarding switch also have a
 * link to the root or the server. */

struct star {
    struct machine *machine;
    struct slots *slots;
    struct leaf *leaf; /* slots and leaf NULL: the star forwards */
    double packet_s; /* of CPU time, a packet */
    struct frames waiting; /* packets that arrived while another was handled; the first is being handled */
    int64_t call; /* call for a worker's first counted contribution of an iteration, which is in `digest`; 0: none */
    int64_t digest[3]; /* worker, iteration, whether it was late */
    int64_t *latest; /* iteration of each worker's latest contribution */
    int64_t size; /* the number of workers or leaves */
    struct link **links;
    int32_t *follows; /* by rank: whether the worker gets answers to its own packets only */
    struct link *uplink;
};

/* A node with slots (a switch alone, a root or a server), with a leaf's slots, or with neither (it forwards). */
struct star *star_open(struct machine *machine, struct slots *slots, struct leaf *leaf, int64_t size, double packet_s,
                       int64_t call);
void star_close(struct star *star);
void star_to(struct star *star, int64_t rank, struct link *link);
/* Send the worker of this rank answers to its own packets only, or all answers. */
void star_follow(struct star *star, int64_t rank, int32_t follows);
void star_to_root(struct star *star, struct link *link);
void star_from(struct star *star, struct link *link);
/* Receive a packet. */
void star_take(struct star *star, struct frame *frame);
void star_put(struct star *star, const uint8_t *header, const uint8_t *body, int64_t size);
void star_digest(const struct star *star, int64_t *digest);
