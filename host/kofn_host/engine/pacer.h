/* A token bucket: packets leave this host at a given rate, with bursts of a few packets. Of the waiting packets the heaviest
 * leaves first; packets of equal weight leave in order. A contribution has the weight of its gradients. So if a link carries only
 * a part of a worker's blocks in time, the blocks that have waited longest leave first, and all blocks take turns.
 *
 * Without the pacer a whole window would enter the link's queue at once. There the window would delay other packets, and cause
 * losses. The pacer has no clock: the caller passes times, in seconds. A packet is a number that the caller chooses, and a
 * size.
 */
#pragma once
#include <stdint.h>

/* Waiting packets that are due within such a pause leave together: a wake-up costs as much as some packets. A bucket smaller
 * than the bytes of one pause would lose rate. */
#define PAUSE_S 4e-3

struct paced {
    int64_t packet, size, weight;
};

struct pacer {
    double byte_s;  /* time of a byte at the rate; 0: unpaced */
    double burst_s; /* time of a whole bucket at the rate */
    double late_s;  /* the longest delay of a wake-up that waiting packets make up for */
    double full_s;  /* when the bucket is full again; an idle sender loses rate from then on */
    double rings_s; /* when the next waiting packets leave; INFINITY: none wait */
    struct paced *queue;
    int64_t first, count, capacity, queued_bytes;
    int64_t left_bytes; /* of all packets that have left */
};

void pacer_open(struct pacer *pacer, double mbps, int64_t burst_bytes, double late_s);
/* Change the rate, also for the bytes that the bucket lacks. */
void pacer_rate(struct pacer *pacer, double mbps, int64_t burst_bytes, double late_s, double now);
void pacer_close(struct pacer *pacer);
/* Whether packets must go through the pacer: there is a rate, or packets still wait from the time when there was one. */
int pacer_is_on(const struct pacer *pacer);

/* When `size` bytes may leave, `now` or later, if no other bytes are taken before. */
double pacer_due_s(const struct pacer *pacer, int64_t size, double now);
/* Take `size` bytes out of the bucket; `waited`: whether the bytes have waited in the queue. */
void pacer_take(struct pacer *pacer, int64_t size, double now, int waited);
/* Send a packet of `size` bytes. Returns 0 if the packet may leave now. Otherwise the packet is queued, and the result is the
 * time at which it is expected to leave, up to PAUSE_S early, if no heavier packet comes. -1 without memory. */
double pacer_send(struct pacer *pacer, int64_t packet, int64_t size, int64_t weight, double now);
/* The queued packet that leaves next; -1: none. */
int64_t pacer_next(const struct pacer *pacer);
/* Remove that packet without sending it: it takes nothing out of the bucket. */
void pacer_drop(struct pacer *pacer);
/* The next queued packet, if it may leave now; else -1. */
int64_t pacer_release(struct pacer *pacer, double now);
/* Set `rings_s`, after pacer_send() and pacer_release(). */
void pacer_set(struct pacer *pacer, double now);
