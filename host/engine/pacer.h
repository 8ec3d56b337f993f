/* A token bucket: packets leave this host at a given rate, in order, with bursts of a few packets.
 *
 * Without it a whole window goes at once into the link's queue, where it delays and drops others' packets. Pure logic:
 * times are passed in, in seconds. A packet is a number of its owner's, and its size.
 */
#pragma once
#include <stdint.h>

/* What waits leaves together, as much as is due after such a pause: a wake-up costs a worker as much as some packets. A
 * bucket that is smaller than what leaves in the pause would lose rate. */
#define PAUSE_S 4e-3

struct paced {
    int64_t packet, size;
};

struct pacer {
    double byte_s;  /* of the rate; 0: not paced */
    double burst_s; /* that what leaves at once takes at the rate */
    double late_s;  /* what waits while the bucket is full, because nobody looks, leaves later in addition: so much */
    double full_s;  /* when the bucket is full again: whoever has nothing that waits then loses rate */
    double rings_s; /* when something that waits leaves; INFINITY: nothing does */
    struct paced *queue;
    int64_t first, count, capacity, queued_bytes;
};

void pacer_open(struct pacer *pacer, double mbps, int64_t burst_bytes, double late_s);
void pacer_close(struct pacer *pacer);

/* When so many bytes may have left, from `now` on; later than that if more is taken before. */
double pacer_due_s(const struct pacer *pacer, int64_t size, double now);
/* So many bytes leave, which have waited for it or not. */
void pacer_take(struct pacer *pacer, int64_t size, double now, int waited);
/* Let a packet of so many bytes go, now (0) or in its turn: when it is expected to leave, up to PAUSE_S before it does. -1
 * without memory. */
double pacer_send(struct pacer *pacer, int64_t packet, int64_t size, double now);
/* The next packet that has waited and may go by now; -1: none may. */
int64_t pacer_release(struct pacer *pacer, double now);
/* After pacer_send() and pacer_release(): sets `rings_s`. */
void pacer_set(struct pacer *pacer, double now);
