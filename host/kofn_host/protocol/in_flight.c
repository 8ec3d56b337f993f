#include "in_flight.h"

#include <math.h>
#include <stdlib.h>

enum { PATIENT = 4 }; /* trips per request in flight before the first probe */
enum { LEVELS = 8 }; /* the most levels that are distinguished in a batch of answers */

int in_flight_open(struct in_flight *all, int64_t requests, double rto_s) {
    *all = (struct in_flight){
        .by_request = calloc((size_t)requests, sizeof *all->by_request),
        .soonest_s = INFINITY,
        .waiting = timeout_of(rto_s, 0),
        .moving = timeout_of(rto_s, 1),
        .answer = timeout_of(rto_s, 0),
        .reordering = reordering_at_first(),
        .moving_since_s = NAN,
    };
    return all->by_request != NULL;
}

static void free_all(struct flight *flight) {
    for (struct flight *later; flight; flight = later) {
        later = flight->later;
        free(flight);
    }
}

void in_flight_close(struct in_flight *all) {
    free_all(all->awaited.first);
    free_all(all->merged.first);
    free_all(all->unused);
    free(all->by_request);
}

int in_flight_is_awaited(const struct flight *flight) {
    return flight->header.count != 0;
}

static struct flights *flights_of(struct in_flight *all, const struct flight *flight) {
    return in_flight_is_awaited(flight) ? &all->awaited : &all->merged;
}

static void append(struct flights *flights, struct flight *flight) {
    flight->earlier = flights->last;
    flight->later = NULL;
    *(flights->last ? &flights->last->later : &flights->first) = flight;
    flights->last = flight;
}

static void unlink_of(struct flights *flights, struct flight *flight) {
    *(flight->earlier ? &flight->earlier->later : &flights->first) = flight->later;
    *(flight->later ? &flight->later->earlier : &flights->last) = flight->earlier;
}

void in_flight_remove(struct in_flight *all, struct flight *flight) {
    unlink_of(flights_of(all, flight), flight);
    all->by_request[flight->request] = NULL;
    all->count -= in_flight_is_awaited(flight);
    flight->later = all->unused;
    all->unused = flight;
}

void in_flight_clear(struct in_flight *all) {
    while (all->awaited.first)
        in_flight_remove(all, all->awaited.first);
    while (all->merged.first)
        in_flight_remove(all, all->merged.first);
}

void in_flight_begin(struct in_flight *all, double moving_since_s) {
    all->moving_since_s = moving_since_s;
    all->disordered = all->in_pieces = all->owned = 0;
    all->level = NULL;
}

/* When the first awaited request leaves, or has left. */
static double first_leaves_s(const struct in_flight *all, double otherwise) {
    return all->awaited.first ? all->awaited.first->sent_s : otherwise;
}

/* The start of a silence: now, or when the first request leaves if none has left yet. */
static double since_s(const struct in_flight *all, double now) {
    return all->all_left_at_s <= now ? now : fmax(now, first_leaves_s(all, now));
}

/* The limit of a silence. While k workers are awaited, the estimated times grow, and with them the time to repair a loss. But if
 * few requests are in flight, they may be retransmitted often: after PATIENT trips per request in flight for the first probe,
 * after one trip per request for the second probe, after two for the third, and so on. */
static double longest_s(const struct in_flight *all) {
    const double trips = (double)all->count * (double)(all->probes ? all->probes : PATIENT);
    return fmin(RTO_MAX_S, trips * reordering_trip_s(&all->reordering));
}

/* The time until the next probe. It doubles with each probe while k workers are awaited. Once blocks close, silence means
 * loss: the oldest request is retransmitted early, as RFC 8985 does for tail losses, and the time grows linearly. */
static double silence_s(const struct in_flight *all) {
    if (!isnan(all->moving_since_s))
        return fmin(longest_s(all),
                    all->probes ? timeout_rto_s(&all->moving) * all->probes : timeout_usual_s(&all->moving));
    const double usual_s = timeout_rto_s(&all->waiting);
    return all->probes ? fmin(longest_s(all), ldexp(usual_s, all->probes < 10 ? all->probes : 10)) : usual_s;
}

/* When the next probe is due. */
static double probe_at_s(const struct in_flight *all) {
    return all->silent_from_s + silence_s(all);
}

double in_flight_deadline_s(const struct in_flight *all) {
    return all->count ? fmin(probe_at_s(all), all->soonest_s) : INFINITY;
}

void in_flight_heard(struct in_flight *all, double now) {
    all->probes = 0;
    all->heard_at_s = now;
    all->silent_from_s = since_s(all, now);
}

struct flight *in_flight_launch(struct in_flight *all, int64_t request, const struct header *header,
                                const uint8_t *values, int64_t size, double now) {
    if (all->by_request[request])
        in_flight_remove(all, all->by_request[request]);
    struct flight *flight = all->unused;
    if (flight)
        all->unused = flight->later;
    else if (!(flight = malloc(sizeof *flight)))
        return NULL;
    if (!all->count && header->count)
        in_flight_heard(all, now);
    all->order++;
    *flight = (struct flight){
        .header = *header,
        .values = values,
        .size = size,
        .request = request,
        .launch = ++all->launches,
        .order = all->order,
        .first_order = all->order,
        .first_sent_s = now,
        .sent_s = now,
        .deadline_s = INFINITY,
        .attempts = 1,
    };
    append(flights_of(all, flight), flight);
    all->by_request[request] = flight;
    all->count += in_flight_is_awaited(flight);
    return flight;
}

struct flight *in_flight_expect(struct in_flight *all, int64_t request, const struct header *header,
                                const uint8_t *values, int64_t size, double now) {
    struct flight *flight = in_flight_launch(all, request, header, values, size, now);
    if (flight)
        flight->expected = 1;
    return flight;
}

void in_flight_leaves(struct in_flight *all, struct flight *flight, double at_s) {
    flight->sent_s = at_s;
    if (flight->attempts == 1)
        flight->first_sent_s = at_s;
    if (!in_flight_is_awaited(flight))
        return;
    all->all_left_at_s = at_s;
    if (first_leaves_s(all, at_s) >= at_s)
        all->silent_from_s = at_s;
}

/* Learn from the first answer of a batch how long the answer was awaited, unless a packet was lost: then the time says nothing
 * about other workers. */
static void learn_wait(struct in_flight *all, const struct flight *flight, double now) {
    const int lost = flight->to_again;
    if (isnan(all->moving_since_s)) {
        all->moving_since_s = now;
        if (!lost)
            timeout_sample(&all->waiting, fmax(0, now - flight->first_sent_s));
    } else if (!lost && now > all->heard_at_s) {
        timeout_sample(&all->moving, now - all->heard_at_s);
    }
}

/* Learn from an answer, and return the order of sending of the attempt that it answers (RFC 3522): the first attempt, unless a
 * retransmitted packet caused the answer. That packet may be another worker's, so an answer that is too early for this worker's
 * retransmission counts as the answer to the first attempt (RFC 8985, 6.2). Otherwise a request that was retransmitted while
 * workers were awaited would seem to have overtaken all earlier requests. */
static int64_t learn(struct in_flight *all, const struct flight *flight, double now) {
    if (flight->expected) /* not an RTT sample: another worker's packet was answered */
        return flight->order;
    if (flight->attempts > 1) {
        reordering_answer_again(&all->reordering, now - flight->sent_s, flight->to_again, timeout_rto_s(&all->answer));
        const int soon = now - flight->sent_s < timeout_soon_s(&all->answer);
        return flight->to_again && !soon ? flight->order : flight->first_order;
    }
    if (flight->sent_s <= now) { /* otherwise others closed the block before the request left */
        timeout_sample(&all->answer, now - fmax(flight->first_sent_s, all->moving_since_s));
        reordering_answer(&all->reordering, now - flight->sent_s);
    }
    return flight->order;
}

/* The latest answered request of a level. */
struct newest {
    int64_t level, order;
};

/* A request's level: all workers send a level's blocks in one order. The summary block, which comes after the gradient's blocks,
 * has a separate level. */
static int64_t level_of(const struct in_flight *all, const struct flight *flight) {
    const int64_t block = flight->request / KOFN_PARTS;
    return !all->level ? 0 : block < all->levels ? all->level[block] : INT64_MIN;
}

/* Note an answered request; levels beyond the first LEVELS are ignored. */
static void answered(struct newest *newest, int64_t level, int64_t order) {
    struct newest *known = newest;
    while (known < newest + LEVELS && known->order && known->level != level)
        known++;
    if (known < newest + LEVELS)
        *known = (struct newest){level, order > known->order ? order : known->order};
}

/* The level of a later request that was answered before this request, compared with this request's level; NOTHING: there is no
 * such request. */
enum overtaker { NOTHING, ITS_LEVEL, LOWER_LEVEL };

static enum overtaker overtaken(const struct in_flight *all, const struct newest *newest, int64_t level, int64_t order) {
    int lower = 0;
    for (const struct newest *known = newest; known < newest + LEVELS; known++)
        if (known->order >= order && known->level == level)
            return ITS_LEVEL;
        else
            lower |= !all->owned && known->order >= order && known->level < level;
    return lower ? LOWER_LEVEL : NOTHING;
}

/* When to retransmit an overtaken request. The first retransmission is due after the reordering window. A later retransmission
 * is not due before the answer to the last attempt can have arrived, and for an expected block not before that answer has
 * usually arrived. If only a lower level has overtaken the request, other workers may still be computing its block; after a
 * refusal they may still be encoding the block again. Then the full timeout applies. */
static double patience_ends_s(const struct in_flight *all, const struct flight *flight, enum overtaker by, double now) {
    const double from_s = fmax(now, flight->sent_s), rto_s = timeout_rto_s(&all->answer);
    if (by == LOWER_LEVEL || all->disordered)
        return from_s + rto_s;
    const double soon_s = from_s + all->reordering.window_s;
    const double again_s = flight->sent_s + (flight->expected ? rto_s : reordering_trip_s(&all->reordering));
    return flight->attempts == 1 ? soon_s : fmax(soon_s, again_s);
}

/* k workers have sent the answered blocks, and had sent all earlier blocks before. So this worker's earlier requests are answered
 * soon, or a packet was lost (as in RFC 8985). Blocks of a higher level leave as soon as they are ready, so their answers tell
 * nothing about lower levels. */
void in_flight_answered(struct in_flight *all, const int64_t *requests, int64_t count, double now) {
    struct newest newest[LEVELS] = {0};
    int64_t last = 0;
    learn_wait(all, all->by_request[requests[0]], now);
    for (int64_t at = 0; at < count; at++) {
        struct flight *flight = all->by_request[requests[at]];
        const int64_t order = learn(all, flight, now);
        answered(newest, level_of(all, flight), order);
        last = order > last ? order : last;
        in_flight_remove(all, flight);
    }
    in_flight_heard(all, now);
    for (struct flight *other = all->awaited.first; other && other->order <= last; other = other->later) {
        const enum overtaker by = overtaken(all, newest, level_of(all, other), other->order);
        if (by)
            other->deadline_s = fmin(other->deadline_s, patience_ends_s(all, other, by, now));
        all->soonest_s = fmin(all->soonest_s, other->deadline_s);
    }
}

int64_t in_flight_due(struct in_flight *all, double now, int64_t *requests) {
    int64_t count = 0, probes = 0;
    all->soonest_s = INFINITY;
    for (const struct flight *flight = all->awaited.first; flight; flight = flight->later) {
        if (flight->deadline_s <= now)
            requests[count++] = flight->request;
        else
            all->soonest_s = fmin(all->soonest_s, flight->deadline_s);
    }
    if (probe_at_s(all) > now)
        return count;
    const int64_t most = all->in_pieces ? 1 : (int64_t)1 << (all->probes < 10 ? all->probes : 10);
    for (const struct flight *flight = all->awaited.first; flight && probes < most; flight = flight->later) {
        if (flight->sent_s > now)
            continue;
        probes++;
        if (flight->deadline_s > now)
            requests[count++] = flight->request;
    }
    all->probes += probes > 0;
    all->silent_from_s = since_s(all, now);
    return count;
}

void in_flight_again(struct in_flight *all, struct flight *flight, double now) {
    if (!flight->expected) {
        unlink_of(&all->awaited, flight);
        append(&all->awaited, flight);
        flight->order = ++all->order;
    }
    flight->header.flags |= KOFN_AGAIN;
    flight->sent_s = now;
    flight->deadline_s = INFINITY;
    flight->asked_peers = 0;
    flight->attempts++;
}
