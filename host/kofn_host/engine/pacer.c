#include "pacer.h"

#include <math.h>
#include <stdlib.h>

void pacer_open(struct pacer *pacer, double mbps, int64_t burst_bytes, double late_s) {
    *pacer = (struct pacer){.rings_s = INFINITY};
    pacer_rate(pacer, mbps, burst_bytes, late_s, 0);
}

void pacer_rate(struct pacer *pacer, double mbps, int64_t burst_bytes, double late_s, double now) {
    const double byte_s = mbps > 0 ? 8e-6 / mbps : 0, taken_s = fmax(0, pacer->full_s - now);
    pacer->full_s = now + (pacer->byte_s > 0 ? taken_s * byte_s / pacer->byte_s : 0);
    pacer->byte_s = byte_s;
    pacer->burst_s = (double)burst_bytes * byte_s;
    pacer->late_s = late_s;
    if (pacer->count)
        pacer->rings_s = now;
}

int pacer_is_on(const struct pacer *pacer) {
    return pacer->byte_s > 0 || pacer->count;
}

void pacer_close(struct pacer *pacer) {
    free(pacer->queue);
    pacer->queue = NULL;
    pacer->first = pacer->count = pacer->capacity = pacer->queued_bytes = 0;
    pacer->rings_s = INFINITY;
}

double pacer_due_s(const struct pacer *pacer, int64_t size, double now) {
    return fmax(now, pacer->full_s - pacer->burst_s + (double)size * pacer->byte_s);
}

void pacer_take(struct pacer *pacer, int64_t size, double now, int waited) {
    pacer->full_s = fmax(pacer->full_s, now - (waited ? pacer->late_s : 0)) + (double)size * pacer->byte_s;
    pacer->left_bytes += size;
}

static struct paced *queued(const struct pacer *pacer, int64_t at) {
    return pacer->queue + (pacer->first + at) % pacer->capacity;
}

static int with_room(struct pacer *pacer) {
    if (pacer->count < pacer->capacity)
        return 1;
    const int64_t capacity = pacer->capacity ? 2 * pacer->capacity : 64;
    struct paced *larger = malloc((size_t)capacity * sizeof *larger);
    if (!larger)
        return 0;
    for (int64_t at = 0; at < pacer->count; at++)
        larger[at] = *queued(pacer, at);
    free(pacer->queue);
    pacer->queue = larger;
    pacer->first = 0;
    pacer->capacity = capacity;
    return 1;
}

double pacer_send(struct pacer *pacer, int64_t packet, int64_t size, int64_t weight, double now) {
    if (!pacer->count && pacer_due_s(pacer, size, now) <= now) {
        pacer_take(pacer, size, now, 0);
        return 0;
    }
    if (!with_room(pacer))
        return -1;
    int64_t at = pacer->count++, ahead = pacer->queued_bytes;
    for (; at && queued(pacer, at - 1)->weight < weight; at--) {
        ahead -= queued(pacer, at - 1)->size;
        *queued(pacer, at) = *queued(pacer, at - 1);
    }
    *queued(pacer, at) = (struct paced){packet, size, weight};
    pacer->queued_bytes += size;
    return pacer_due_s(pacer, ahead + size, now);
}

int64_t pacer_next(const struct pacer *pacer) {
    return pacer->count ? queued(pacer, 0)->packet : -1;
}

void pacer_drop(struct pacer *pacer) {
    pacer->queued_bytes -= queued(pacer, 0)->size;
    pacer->first = (pacer->first + 1) % pacer->capacity;
    pacer->count--;
}

int64_t pacer_release(struct pacer *pacer, double now) {
    if (!pacer->count || pacer_due_s(pacer, queued(pacer, 0)->size, now) > now)
        return -1;
    const struct paced next = *queued(pacer, 0);
    pacer_drop(pacer);
    pacer_take(pacer, next.size, now, 1);
    return next.packet;
}

void pacer_set(struct pacer *pacer, double now) {
    if (!pacer->count) {
        pacer->rings_s = INFINITY;
        return;
    }
    const double first_s = pacer_due_s(pacer, queued(pacer, 0)->size, now);
    const double all_s = pacer_due_s(pacer, pacer->queued_bytes, now);
    const double rings_s = fmin(fmin(first_s + PAUSE_S, all_s), fmax(first_s, pacer->full_s));
    pacer->rings_s = fmin(pacer->rings_s, rings_s);
}
