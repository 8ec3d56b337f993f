#include "in_flight.h"

#include <math.h>
#include <stdlib.h>

enum { PATIENT = 4 };
enum { LEVELS = 8 }; /* that answers which have come together are told apart by */

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

/* When the first of all awaited requests leaves, or has left. */
static double first_leaves_s(const struct in_flight *all, double otherwise) {
    return all->awaited.first ? all->awaited.first->sent_s : otherwise;
}

/* From when on an answer can be missed: now, or once the first request leaves where none has left yet. */
static double since_s(const struct in_flight *all, double now) {
    return all->all_left_at_s <= now ? now : fmax(now, first_leaves_s(all, now));
}

/* The longest silence. While others are waited for estimates grow, and with them everyone's wait for what is lost; but a
 * few requests may be repeated often: the first time after PATIENT trips for each that is in flight, then after one, two
 * and so on. */
static double longest_s(const struct in_flight *all) {
    const double trips = (double)all->count * (double)(all->probes ? all->probes : PATIENT);
    return fmin(RTO_MAX_S, trips * reordering_trip_s(&all->reordering));
}

/* How long silence may last. Doubles each time while k workers are waited for. Once the iteration moves silence is loss:
 * the oldest request is repeated early, as RFC 8985 does at the tail, and the wait grows by its own length only. */
static double silence_s(const struct in_flight *all) {
    if (!isnan(all->moving_since_s))
        return fmin(longest_s(all),
                    all->probes ? timeout_rto_s(&all->moving) * all->probes : timeout_usual_s(&all->moving));
    const double usual_s = timeout_rto_s(&all->waiting);
    return all->probes ? fmin(longest_s(all), ldexp(usual_s, all->probes < 10 ? all->probes : 10)) : usual_s;
}

/* When something is sent again because nothing at all is answered. */
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

/* From the first of answers that have come together, how long they were waited for. Where a packet was lost the time says
 * nothing about other workers. */
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

/* From each answer; which of all requests it answers, by their order of sending (RFC 3522): the first attempt, unless it came
 * to a repetition. That may be another worker's, so not what comes sooner than an answer can (RFC 8985, 6.2). A request that
 * was repeated while others were waited for would seem to have overtaken all that was sent before it. */
static int64_t learn(struct in_flight *all, const struct flight *flight, double now) {
    if (flight->expected) /* no packet of this worker was answered, or one that was sent when another's was overdue */
        return flight->order;
    if (flight->attempts > 1) {
        reordering_answer(&all->reordering, now - flight->sent_s, 1);
        const int soon = now - flight->sent_s < timeout_soon_s(&all->answer);
        return flight->to_again && !soon ? flight->order : flight->first_order;
    }
    if (flight->sent_s <= now) { /* else others have closed the block without it */
        timeout_sample(&all->answer, now - fmax(flight->first_sent_s, all->moving_since_s));
        reordering_answer(&all->reordering, now - flight->sent_s, 0);
    }
    return flight->order;
}

/* The latest of those answered, by level. */
struct newest {
    int64_t level, order;
};

/* What all workers send in one order; what comes after all others, as the summary block, is its own. */
static int64_t level_of(const struct in_flight *all, const struct flight *flight) {
    const int64_t block = flight->request / KOFN_PARTS;
    return !all->level ? 0 : block < all->levels ? all->level[block] : INT64_MIN;
}

/* One more is answered; of more levels than there is room for nothing is learnt. */
static void answered(struct newest *newest, int64_t level, int64_t order) {
    struct newest *one = newest;
    while (one < newest + LEVELS && one->order && one->level != level)
        one++;
    if (one < newest + LEVELS)
        *one = (struct newest){level, order > one->order ? order : one->order};
}

/* By what a request was overtaken, which is answered and was sent later. */
enum overtaker { NOTHING, ITS_LEVEL, LOWER_LEVEL };

static enum overtaker overtaken(const struct in_flight *all, const struct newest *newest, int64_t level, int64_t order) {
    int lower = 0;
    for (const struct newest *one = newest; one < newest + LEVELS; one++)
        if (one->order >= order && one->level == level)
            return ITS_LEVEL;
        else
            lower |= !all->owned && one->order >= order && one->level < level;
    return lower ? LOWER_LEVEL : NOTHING;
}

/* When an overtaken request is sent again: soon for the first time, then not before its answer can be here; where what its
 * owner sent later says nothing of that, not before it is here usually. What only a lower level has overtaken others may
 * still compute; after a refusal they may still encode it anew. */
static double patience_ends_s(const struct in_flight *all, const struct flight *flight, enum overtaker by, double now) {
    const double from_s = fmax(now, flight->sent_s), rto_s = timeout_rto_s(&all->answer);
    if (by == LOWER_LEVEL || all->disordered)
        return from_s + rto_s;
    const double soon_s = from_s + all->reordering.window_s;
    const double again_s = flight->sent_s + (flight->expected ? rto_s : reordering_trip_s(&all->reordering));
    return flight->attempts == 1 ? soon_s : fmax(soon_s, again_s);
}

/* k workers had sent the answered blocks, and all that they had sent before; so what this worker sent before them will be
 * answered soon, or something was lost (as RFC 8985 has it). Blocks of a higher level leave as soon as they are there, so
 * they say nothing of lower ones. */
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
