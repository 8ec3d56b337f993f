/* Functions for tests that explore every future of a core: copies of it, and timers that ring at any time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

static struct flights copy_flights(const struct flights *from, struct flight **by_request, const struct core *to,
                                   const struct core *of) {
    struct flights copies = {0};
    for (const struct flight *flight = from->first; flight; flight = flight->later) {
        struct flight *copy = malloc(sizeof *copy);
        *copy = *flight;
        copy->values = flight->values == of->zeros ? to->zeros : flight->values;
        copy->earlier = copies.last, copy->later = NULL;
        *(copies.last ? &copies.last->later : &copies.first) = copy;
        copies.last = by_request[flight->request] = copy;
    }
    return copies;
}

static void copy_in_flight(struct core *to, const struct core *from) {
    struct flight **by_request = to->in_flight.by_request;
    to->in_flight = from->in_flight;
    to->in_flight.by_request = by_request;
    to->in_flight.unused = NULL;
    to->in_flight.awaited = copy_flights(&from->in_flight.awaited, by_request, to, from);
    to->in_flight.merged = copy_flights(&from->in_flight.merged, by_request, to, from);
}

static void copy_history(struct history *to, const struct history *from) {
    for (int64_t at = from->first; at < from->end; at++) {
        const struct iteration_results *of = from->whole + at;
        struct iteration_results *copy = history_of(to, of->iteration);
        copy->known = of->known;
        memcpy(copy->results, of->results, (size_t)from->blocks * sizeof *of->results);
        for (int64_t block = 0; block < from->blocks; block++)
            if (of->results[block].values) {
                copy->results[block].values = history_buffer(to) + to->ahead;
                memcpy(copy->results[block].values, of->results[block].values, (size_t)of->results[block].size);
            }
    }
}

struct core *core_copy(const struct core *from) {
    const struct history *history = &from->history;
    struct core *to = core_open(from->job, from->rank, &from->layout, from->slots, from->window,
                                from->in_flight.waiting.initial_s, history->keep, history->keep_members,
                                from->racks * from->rack_workers, from->racks, from->everyone != 0);
    struct core kept = *to;
    const size_t blocks = (size_t)from->total, requests = blocks * KOFN_PARTS;
    *to = *from;
    to->blocks = kept.blocks, to->place = kept.place, to->open = kept.open, to->slot_lanes = kept.slot_lanes;
    to->waiting = kept.waiting, to->launched = kept.launched, to->news = kept.news, to->due = kept.due;
    to->zeros = kept.zeros, to->instructions = NULL, to->instructions_capacity = 0;
    to->in_flight = kept.in_flight, to->history = kept.history;
    memcpy(to->blocks, from->blocks, blocks * sizeof *to->blocks);
    memcpy(to->place, from->place, blocks * sizeof *to->place);
    memcpy(to->open, from->open, blocks);
    memcpy(to->slot_lanes, from->slot_lanes, blocks);
    memcpy(to->waiting, from->waiting, requests * sizeof *to->waiting);
    memcpy(to->launched, from->launched, requests);
    copy_in_flight(to, from);
    copy_history(&to->history, &from->history);
    to->results = to->iteration ? history_find(&to->history, to->iteration) : NULL;
    return to;
}

/* Lets one request's time pass, and no other's. */
void core_ring(struct core *core, int64_t request, double now) {
    core->in_flight.silent_from_s = INFINITY;
    for (struct flight *flight = core->in_flight.awaited.first; flight; flight = flight->later)
        flight->deadline_s = flight->request == request ? now : INFINITY;
}

/* Forget results once these first workers have given, not all. */
void core_await_only(struct core *core, int64_t workers) {
    core->everyone = ((uint64_t)1 << workers) - 1;
}
