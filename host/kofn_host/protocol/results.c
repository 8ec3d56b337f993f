/* Results of blocks, from the switch or from a peer: a result is kept once, closes its block, and lets later blocks leave.
 *
 * This part does not know headers: packets.c checks them.
 */
#include "core_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *described(const struct result *result, char *text, size_t room) {
    int first = MEMBER_WORDS - 1, at;
    while (first && !result->members[first])
        first--;
    at = snprintf(text, room, "members 0x%" PRIx64, result->members[first]);
    while (first--)
        at += snprintf(text + at, room - (size_t)at, "%016" PRIx64, result->members[first]);
    snprintf(text + at, room - (size_t)at, " (count %d, weight %" PRIu32 ", lanes %d, scale %d)", result->count,
             result->weight, result->lanes, result->scale);
    return text;
}

/* Fail if two results of one block differ: the replicas would differ too. */
static int check_same(struct core *core, int64_t iteration, int64_t block, const struct result *known,
                      const struct result *other) {
    if (!memcmp(known->members, other->members, sizeof known->members) && known->count == other->count &&
        known->weight == other->weight && known->lanes == other->lanes && known->scale == other->scale)
        return 0;
    char here[16 * MEMBER_WORDS + 128], there[sizeof here];
    return core_fail(core,
                     "block %" PRId64 " of iteration %" PRId64 " has two results: %s here, %s there; the replicas have parted",
                     block, iteration, described(known, here, sizeof here), described(other, there, sizeof there));
}

static int check_summed(struct core *core, int64_t block) {
    if (core->place[block] >= 0)
        return 0;
    return core_fail(core,
                     "blocks [%" PRId64 "] of iteration %" PRId64 " were summed, which this worker was not told to send in it:"
                     " the workers' plans have parted",
                     block, core->iteration);
}

static void close_block(struct core *core, int64_t block, int32_t hint, int32_t to_again) {
    core->open[block] = 0;
    core->open_count--;
    for (int part = 0; core->waiting_all && part < KOFN_PARTS; part++)
        requests_drop(core, request_of(block, part));
    core->news[core->news_count++] = (struct news){block, hint, to_again};
}

/* Forget earlier iterations once all workers have contributed part 0 to this iteration. A worker that contributes has all
 * earlier sums, or a replica that includes them, and its ledger still knows this if the worker dies. So no worker will request
 * or repeat the earlier sums. */
static int forget_earlier(struct core *core, const struct result *result) {
    if (!core->everyone)
        return 0;
    for (int rack = 0; rack < core->racks; rack++)
        if ((result->members[member_word(rack, 0)] & core->everyone) != core->everyone)
            return 0;
    core->given = core->iteration;
    return history_forget(&core->history, core->iteration, 0) ? 0 : core_without_memory(core);
}

/* Keep a result. If it closes a current block, drop this worker's waiting contributions to it. Returns whether the values are
 * kept; -1: an error. */
int results_note(struct core *core, int64_t iteration, int64_t block, const struct result *result, int32_t hint,
                int32_t to_again) {
    if (block >= core->total || iteration < core->iteration)
        return 0;
    const int current = iteration == core->iteration && core->results;
    struct iteration_results *known = current ? core->results : history_of(&core->history, iteration);
    if (!known)
        return core_without_memory(core);
    core->results = core->iteration ? history_find(&core->history, core->iteration) : NULL; /* the results may have moved */
    if (known->results[block].values)
        return check_same(core, iteration, block, known->results + block, result);
    if (current && !core->open[block] && check_summed(core, block))
        return -1;
    if (current && forget_earlier(core, result))
        return -1;
    known->results[block] = *result;
    known->known++;
    core->any_news = 1;
    if (iteration >= core->newest) {
        core->newest = iteration;
        core->k = result->k;
    }
    if (current && core->open[block])
        close_block(core, block, hint, to_again);
    return 1;
}

/* Write the awaited requests of the blocks that have just closed into `due`; return their number. */
static int64_t answered(struct core *core) {
    int64_t count = 0;
    for (int64_t at = 0; at < core->news_count; at++)
        for (int part = 0; part < KOFN_PARTS; part++) {
            const int64_t request = request_of(core->news[at].block, part);
            struct flight *flight = core->in_flight.by_request[request];
            if (!flight)
                continue;
            flight->to_again = core->news[at].to_again;
            if (in_flight_is_awaited(flight))
                core->due[count++] = request;
            else
                in_flight_remove(&core->in_flight, flight);
        }
    return count;
}

/* Send the blocks that may leave because the first `closed` blocks in `news` have closed. */
static int launch_after(struct core *core, int64_t closed, double now) {
    if (core->owner)
        return owned_blocks_launch(core, now);
    for (int64_t at = 0; at < closed; at++)
        if (requests_launch(core, core->place[core->news[at].block] + core->reach, now))
            return -1;
    return 0;
}

/* Handle the results that were noted since the last call. */
int results_follow(struct core *core, double now) {
    if (!core->any_news)
        return 0;
    for (int64_t at = 0; at < core->news_count; at++)
        if (instruct_deliver(core, core->news[at].block, core->news[at].hint, now))
            return -1;
    if (core->news_count && !core->open_count && !instruct(core, COMPLETE, 0))
        return core_without_memory(core);
    const int64_t count = answered(core);
    if (count)
        in_flight_answered(&core->in_flight, core->due, count, now);
    const int64_t closed = core->news_count;
    core->news_count = core->any_news = 0;
    if (launch_after(core, closed, now))
        return -1;
    return requests_pull(core, now);
}

void core_others_reached(struct core *core, int64_t iteration) {
    core->newest = iteration > core->newest ? iteration : core->newest;
}

/* Take a peer's result of a block; its iteration's requests and instructions follow in results_follow(). */
static int take_result(struct core *core, int64_t iteration, int64_t block, const struct result *result) {
    uint8_t *buffer;
    if (!result->weight) {
        core_others_reached(core, iteration + 1);
        return 0;
    }
    if (!result->values || result->size > core->history.room - core->history.ahead)
        return 0;
    if (!(buffer = history_buffer(&core->history)))
        return core_without_memory(core);
    struct result copied = *result;
    copied.values = buffer + core->history.ahead;
    memcpy(copied.values, result->values, (size_t)result->size);
    const int noted = results_note(core, iteration, block, &copied, -1, 0);
    if (noted <= 0)
        history_release(&core->history, buffer);
    return noted < 0 ? -1 : 0;
}

int core_results_in(struct core *core, int64_t iteration, const int64_t *blocks, const struct result *results, int64_t count,
                    double now) {
    for (int64_t at = 0; at < count; at++)
        if (take_result(core, iteration, blocks[at], results + at))
            return -1;
    return results_follow(core, now) ? -1 : requests_pull(core, now);
}

int core_packets_done(struct core *core, double now) {
    return results_follow(core, now);
}
