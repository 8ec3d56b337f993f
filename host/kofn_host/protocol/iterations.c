/* The begin of an iteration: its blocks open, and the blocks that others have finished close at once.
 *
 * This part knows no packets. It finds results that came early in the history.
 */
#include "core_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 8 }; /* blocks that an error lists */

/* The first SHOWN numbers, formatted as a Python list. */
static const char *listed(const int32_t *numbers, int64_t count, char *text, size_t room) {
    int at = snprintf(text, room, "[");
    for (int64_t i = 0; i < count && i < SHOWN; i++)
        at += snprintf(text + at, room - (size_t)at, "%s%" PRId32, i ? ", " : "", numbers[i]);
    snprintf(text + at, room - (size_t)at, "]");
    return text;
}

/* Fail if others have summed a block that this worker does not send in the iteration. */
static int check_known(struct core *core, int64_t iteration, const struct iteration_results *known, const int32_t *place) {
    int32_t foreign[SHOWN];
    int64_t count = 0;
    for (int64_t block = 0; block < core->total && count < SHOWN; block++)
        if (place[block] < 0 && known->results[block].values)
            foreign[count++] = (int32_t)block;
    char text[256];
    if (!count)
        return 0;
    return core_fail(core,
                     "blocks %s of iteration %" PRId64 " were summed, which this worker was not told to send in it:"
                     " the workers' plans have parted",
                     listed(foreign, count, text, sizeof text), iteration);
}

static int check_blocks(struct core *core, int64_t iteration, const int32_t *blocks, int64_t count) {
    int fits = count > 0 && blocks[0] >= 0 && blocks[count - 1] < core->total;
    for (int64_t at = 1; at < count; at++)
        fits &= blocks[at - 1] < blocks[at];
    char text[256];
    if (fits)
        return 0;
    return core_fail(core, "blocks of iteration %" PRId64 " must be one or more of 0 to %" PRId64 ", ascending, got %s",
                     iteration, core->total - 1, listed(blocks, count, text, sizeof text));
}

static int check_begins(struct core *core, int64_t iteration, int32_t lanes) {
    if (core->open_count) {
        int32_t missing[SHOWN];
        int64_t count = 0;
        for (int64_t block = 0; block < core->total && count < SHOWN; block++)
            if (core->open[block])
                missing[count++] = (int32_t)block;
        char text[256];
        return core_fail(core, "iteration %" PRId64 " begins, but %" PRId64 " has open blocks: %s", iteration, core->iteration,
                         listed(missing, count, text, sizeof text));
    }
    if (iteration <= core->iteration)
        return core_fail(core, "an iteration must come after %" PRId64 ", got %" PRId64, core->iteration, iteration);
    if (!layout_words(&core->layout, 0, lanes))
        return core_fail(core,
                         "block 0 cannot be sent in lanes of code %d: it has %" PRId64 " words in lanes of %" PRId64 " bits",
                         lanes, core->layout.words, core->layout.widest);
    return 0;
}

/* Open all blocks of the iteration. */
static void enter_iteration(struct core *core, int64_t iteration, const int32_t *blocks, int64_t count, int64_t first,
                            int32_t lanes) {
    core->iteration = iteration;
    core->first = first;
    core->planned = lanes;
    core->count = core->open_count = count;
    core->closed = core->reached = 0;
    core->owner = core->recipient = NULL;
    core->reach = core->follows ? core->slots : core->window;
    memcpy(core->blocks, blocks, (size_t)count * sizeof *blocks);
    memset(core->open, 0, (size_t)core->total);
    memset(core->launched, 0, (size_t)core->total * KOFN_PARTS);
    memset(core->slot_lanes, -1, (size_t)core->total);
    for (int64_t at = 0; at < count; at++)
        core->open[blocks[at]] = 1;
}

static int close_known(struct core *core, double now) {
    const int64_t count = core->count;
    for (int64_t at = 0; at < count && core->results->known; at++) {
        const int64_t block = core->blocks[at];
        if (!core->results->results[block].values)
            continue;
        core->open[block] = 0;
        core->open_count--;
        if (instruct_deliver(core, block, -1, now))
            return -1;
    }
    return 0;
}

int core_begin(struct core *core, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
               int32_t lanes) {
    if (check_begins(core, iteration, lanes) || check_blocks(core, iteration, blocks, count))
        return -1;
    core->query.asked = 0;
    if (!history_forget(&core->history, iteration, core->history.keep) ||
        !(core->results = history_of(&core->history, iteration)))
        return core_without_memory(core);
    link_probe_begin(core);
    memset(core->place, -1, (size_t)core->total * sizeof *core->place);
    for (int64_t at = 0; at < count; at++)
        core->place[blocks[at]] = (int32_t)at;
    if (check_known(core, iteration, core->results, core->place))
        return -1;
    enter_iteration(core, iteration, blocks, count, first, lanes);
    in_flight_begin(&core->in_flight, core->results->known ? now : NAN);
    if (close_known(core, now))
        return -1;
    if (!core->open_count && !instruct(core, COMPLETE, 0))
        return core_without_memory(core);
    return requests_pull(core, now);
}

int core_jump(struct core *core, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
              int32_t lanes) {
    core->open_count = 0;
    in_flight_clear(&core->in_flight);
    for (int64_t request = 0; core->waiting_all; request++)
        requests_drop(core, request);
    return core_begin(core, iteration, now, blocks, count, first, lanes);
}

void core_in_pieces(struct core *core, const int64_t *level) {
    core->in_flight.in_pieces = 1;
    set_levels(core, level);
}
