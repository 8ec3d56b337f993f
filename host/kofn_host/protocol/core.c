#include "core.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PULLS_BEFORE_PEERS = 3 }; /* unanswered requests for a closed block before its slot counts as lost */
enum { SHOWN = 8 };              /* blocks that an error lists */

static int fail(struct core *core, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(core->error, sizeof core->error, format, arguments);
    va_end(arguments);
    return -1;
}

static int without_memory(struct core *core) {
    return fail(core, "worker %d: no memory for the protocol's state", core->rank);
}

static int64_t request_of(int64_t block, int64_t part) {
    return block * KOFN_PARTS + part;
}

/* -- layout */

static int64_t summary_of(const struct layout *layout) {
    return layout->summary_words ? layout->blocks : -1;
}

/* Words of a block in lanes of this code; 0: it cannot be sent in them. */
static int64_t layout_words(const struct layout *layout, int64_t block, int lanes) {
    if (lanes < 0 || lanes >= LANE_CODES)
        return 0;
    if (block == summary_of(layout))
        return lanes ? 0 : layout->summary_words;
    const int64_t bits = layout->words * LANE_WIDTHS[lanes], words = bits / layout->widest;
    if (LANE_WIDTHS[lanes] > layout->widest || bits % layout->widest || (lanes == KOFN_VOTES && words > KOFN_VOTE_WORDS))
        return 0;
    return words;
}

/* Words of a block's sum; a sum of votes has planes. */
static int64_t sum_words(const struct layout *layout, int64_t block, int lanes) {
    return layout_words(layout, block, lanes) * (lanes == KOFN_VOTES ? layout->planes : 1);
}

static int64_t most_words(const struct layout *layout) {
    int64_t most = layout->summary_words;
    for (int lanes = 0; lanes < LANE_CODES; lanes++) {
        const int64_t words = sum_words(layout, 0, lanes);
        most = words > most ? words : most;
    }
    return most;
}

static int64_t words_of(const struct core *core, int64_t block, int lanes) {
    return block == core->layout.blocks ? layout_words(&core->layout, block, lanes) : core->words[lanes];
}

/* The lanes in which a block is summed: as its slot has answered, else as planned. */
static int lanes_of(const struct core *core, int64_t block) {
    if (core->slot_lanes[block] >= 0)
        return core->slot_lanes[block];
    return block == summary_of(&core->layout) ? 0 : core->planned;
}

/* -- instructions */

static struct instruction *instruct(struct core *core, enum instruction_kind kind, int64_t block) {
    if (core->instructions_count == core->instructions_capacity) {
        const int64_t capacity = core->instructions_capacity ? 2 * core->instructions_capacity : 64;
        void *larger = realloc(core->instructions, (size_t)capacity * sizeof *core->instructions);
        if (!larger)
            return NULL;
        core->instructions = larger;
        core->instructions_capacity = capacity;
    }
    struct instruction *next = core->instructions + core->instructions_count++;
    core->urgent_count += kind != DELIVER;
    next->kind = kind;
    next->iteration = core->iteration;
    next->block = block;
    return next;
}

static int send(struct core *core, const struct header *header, const uint8_t *values, int64_t size, int64_t launch) {
    struct instruction *next = instruct(core, SEND, header->block);
    if (!next)
        return without_memory(core);
    next->part = header->part;
    next->launch = launch;
    next->values = values;
    next->size = size;
    if (header->kind == KOFN_CONTRIBUTE)
        core->statistics.wire_bytes += next->size;
    header_write(header, next->header);
    return 0;
}

static int deliver(struct core *core, int64_t block, int32_t hint, double now) {
    struct instruction *next = instruct(core, DELIVER, block);
    if (!next)
        return without_memory(core);
    next->hint = hint;
    next->time_s = now;
    return 0;
}

static int ask_peers(struct core *core, struct flight *flight) {
    if (flight->asked_peers)
        return 0; /* at most once per transmission of the request */
    flight->asked_peers = 1;
    return instruct(core, ASK_PEERS, flight->header.block) ? 0 : without_memory(core);
}

/* -- open and close */

struct core *core_open(int32_t job, int32_t rank, const struct layout *layout, int64_t slots, int64_t window, double rto_s,
                       int64_t keep, int64_t keep_members, int32_t workers, int32_t racks, int32_t forgets) {
    struct core *core = calloc(1, sizeof *core);
    if (!core)
        return NULL;
    core->layout = *layout;
    core->total = layout->blocks + (layout->summary_words > 0);
    core->job = job, core->rank = rank;
    core->slots = slots, core->window = window;
    core->racks = racks;
    core->rack_workers = workers ? workers / racks : RACK_RANKS;
    core->everyone = forgets ? ~(uint64_t)0 >> (RACK_RANKS - core->rack_workers) : 0;
    for (int lanes = 0; lanes < LANE_CODES; lanes++)
        core->words[lanes] = layout_words(layout, 0, lanes);
    const size_t blocks = (size_t)core->total, requests = blocks * KOFN_PARTS;
    const int64_t ahead = racks > 1 ? racks * KOFN_MEMBERS_BYTES : 0, values = most_words(layout) * KOFN_WORD_BYTES;
    core->blocks = calloc(blocks, sizeof *core->blocks);
    core->place = calloc(blocks, sizeof *core->place);
    core->open = calloc(blocks, sizeof *core->open);
    core->slot_lanes = malloc(blocks);
    core->waiting = calloc(requests, sizeof *core->waiting);
    core->launched = calloc(requests, 1);
    core->news = calloc(blocks, sizeof *core->news);
    core->due = calloc(requests, sizeof *core->due);
    core->zeros = calloc((size_t)KOFN_WORDS_MAX, KOFN_WORD_BYTES);
    const int opened = in_flight_open(&core->in_flight, (int64_t)requests, rto_s) &&
                       history_open(&core->history, core->total, ahead, values, keep, keep_members);
    if (!core->blocks || !core->place || !core->open || !core->slot_lanes || !core->waiting || !core->launched ||
        !core->news || !core->due || !core->zeros || !opened)
        return core_close(core), NULL;
    memset(core->slot_lanes, -1, blocks);
    return core;
}

void core_close(struct core *core) {
    in_flight_close(&core->in_flight);
    history_close(&core->history);
    free(core->blocks);
    free(core->place);
    free(core->open);
    free(core->slot_lanes);
    free(core->waiting);
    free(core->launched);
    free(core->news);
    free(core->due);
    free(core->zeros);
    free(core->instructions);
    free(core);
}

uint8_t *core_buffer(struct core *core) {
    return history_buffer(&core->history);
}

void core_release(struct core *core, uint8_t *buffer) {
    history_release(&core->history, buffer);
}

int core_left_behind(const struct core *core) {
    return core->newest > core->iteration;
}

int64_t core_link_bytes(const struct core *core, const uint8_t *header, int64_t size) {
    const struct header read = header_read(header);
    const int votes = core->words[KOFN_VOTES] && read.lanes == KOFN_VOTES && read.recipient == KOFN_EVERYONE;
    return KOFN_FRAME_BYTES + KOFN_HEADER_BYTES + size * (votes ? core->layout.planes : 1);
}

double core_deadline_s(const struct core *core) {
    return in_flight_deadline_s(&core->in_flight);
}

/* -- requests */

static void drop_waiting(struct core *core, int64_t request) {
    struct waiting *waits = &core->waiting[request];
    if (!waits->values)
        return;
    core->waiting_all--;
    core->waiting_count -= waits->counts != 0;
    waits->values = NULL;
}

static void put_waiting(struct core *core, int64_t request, const struct waiting *ready) {
    drop_waiting(core, request);
    core->waiting[request] = *ready;
    core->waiting_all++;
    core->waiting_count += ready->counts != 0;
}

/* Count the closed blocks before the first open one. Closed blocks never reopen. */
static void pass_closed(struct core *core) {
    while (core->closed < core->count && !core->open[core->blocks[core->closed]])
        core->closed++;
}

/* Whether the slot of the block at this place is free for it. All blocks of earlier iterations are closed. */
static int may_leave(const struct core *core, int64_t place) {
    const int64_t before = place - core->reach;
    return before < 0 || (core->owner ? before < core->closed : !core->open[core->blocks[before]]);
}

/* A worker's place: its rack, and its rank in the rack. */
static uint16_t place_of(const struct core *core, int64_t rank) {
    return (uint16_t)(rank / core->rack_workers * RACK_PLACES + rank % core->rack_workers);
}

static uint16_t recipient_of(const struct core *core, int64_t block) {
    const int64_t rank = core->recipient ? core->recipient[block] : KOFN_EVERYONE;
    return rank == KOFN_EVERYONE ? KOFN_EVERYONE : place_of(core, rank);
}

static int64_t rank_of(const struct core *core, uint16_t place) {
    return (int64_t)place / RACK_PLACES * core->rack_workers + place % RACK_PLACES;
}

static struct header header_of(const struct core *core, int64_t request, const struct waiting *ready) {
    const int64_t block = request / KOFN_PARTS;
    const int64_t number = core->first + core->place[block];
    return (struct header){
        .version = KOFN_VERSION,
        .kind = KOFN_CONTRIBUTE,
        .job = (uint8_t)core->job,
        .worker = (uint8_t)place_of(core, core->rank),
        .recipient = recipient_of(core, block),
        .lanes = (uint8_t)ready->lanes,
        .flags = (uint8_t)ready->flags,
        .words = (uint8_t)words_of(core, block, ready->lanes),
        .k = core->owner != NULL,
        .generation = (uint32_t)core->generation,
        .iteration = (uint32_t)core->iteration,
        .block = (uint32_t)block,
        .slot = (uint16_t)(number % core->slots),
        .scale = (int16_t)ready->scale,
        .count = ready->counts != 0,
        .part = (uint8_t)(request % KOFN_PARTS),
        .weight = ready->weight,
    };
}

/* The header that a contribution to an open block would have now. */
static struct header bare_header(const struct core *core, int64_t block) {
    const struct waiting nothing = {.lanes = lanes_of(core, block), .weight = 1, .counts = 1};
    return header_of(core, request_of(block, 0), &nothing);
}

static struct header pull_header(const struct core *core, int64_t block) {
    struct header header = bare_header(core, block);
    header.kind = KOFN_PULL;
    return header;
}

static int launch(struct core *core, int64_t request, const struct header *header, const uint8_t *values, int64_t size,
                  double now) {
    const struct flight *flight = in_flight_launch(&core->in_flight, request, header, values, size, now);
    core->launched[request] = 1;
    if (header->kind == KOFN_CONTRIBUTE) {
        core->probe.left++;
        core->probe.last = request;
    }
    return flight ? send(core, header, values, size, flight->launch) : without_memory(core);
}

/* Whether a counted request for this block is in flight or waits. */
static int asked(const struct core *core, int64_t block) {
    for (int64_t request = request_of(block, 0); request < request_of(block + 1, 0); request++) {
        const struct flight *flight = core->in_flight.by_request[request];
        const struct waiting *waits = &core->waiting[request];
        if ((flight && in_flight_is_awaited(flight)) || (waits->values && waits->counts))
            return 1;
    }
    return 0;
}

/* Once the others are ahead, blocks that are open here are closed there. PULL every open block without a request that the
 * window allows; do not wait for this worker's gradient. */
static int pull(struct core *core, double now) {
    if (!core_left_behind(core) || core->regrouping)
        return 0;
    for (int64_t place = 0; place < core->count; place++) {
        const int64_t block = core->blocks[place];
        if (!core->open[block] || !may_leave(core, place) || asked(core, block))
            continue;
        core->statistics.pulls++;
        const struct header header = pull_header(core, block);
        if (launch(core, request_of(block, 0), &header, core->zeros, header.words * KOFN_WORD_BYTES, now))
            return -1;
    }
    return 0;
}

/* Send the waiting parts of the block at this place, if it may leave. */
static int launch_waiting(struct core *core, int64_t place, double now) {
    if (core->regrouping || place >= core->count || !may_leave(core, place))
        return 0;
    for (int part = 0; part < KOFN_PARTS; part++) {
        const int64_t request = request_of(core->blocks[place], part);
        const struct waiting ready = core->waiting[request];
        if (!ready.values)
            continue;
        drop_waiting(core, request);
        const struct header header = header_of(core, request, &ready);
        if (launch(core, request, &header, ready.values, ready.size, now))
            return -1;
    }
    return 0;
}

/* -- owned blocks */

static void set_levels(struct core *core, const int64_t *level) {
    core->in_flight.level = level;
    core->in_flight.levels = core->layout.blocks;
}

/* Await the result of another worker's block, which may be in its slot by now. It counts as the answer to a PULL that is not
 * sent until its first retransmission would be due. */
static int expect(struct core *core, int64_t block, double now) {
    const struct header header = pull_header(core, block);
    const int64_t size = header.words * KOFN_WORD_BYTES;
    return in_flight_expect(&core->in_flight, request_of(block, 0), &header, core->zeros, size, now) ? 0
                                                                                                     : without_memory(core);
}

/* Handle blocks that may leave now that others have closed: send this worker's, expect the others'. */
static int launch_owned(struct core *core, double now) {
    pass_closed(core);
    for (; core->reached < core->count && may_leave(core, core->reached); core->reached++) {
        const int64_t block = core->blocks[core->reached];
        if (!core->open[block])
            continue;
        if (core->owner[block] == core->rank ? launch_waiting(core, core->reached, now) : expect(core, block, now))
            return -1;
    }
    return 0;
}

int core_owned(struct core *core, const int64_t *owner, int64_t span, double now) {
    const int64_t most = core->slots / 2 + 1 - span;
    if (most < 1)
        return fail(core, "blocks that may each be another worker's must be at most %" PRId64 " (half of %" PRId64
                    " slots), got %" PRId64, core->slots / 2, core->slots, span);
    core->owner = owner;
    core->reach = most < core->window ? most : core->window;
    core->in_flight.owned = 1;
    set_levels(core, owner); /* each owner sends in one order */
    return launch_owned(core, now);
}

void core_received(struct core *core, const int64_t *recipient) {
    core->recipient = recipient;
}

/* Send the blocks that may leave because the first `closed` blocks of the news have closed. */
static int launch_after(struct core *core, int64_t closed, double now) {
    if (core->owner)
        return launch_owned(core, now);
    for (int64_t at = 0; at < closed; at++)
        if (launch_waiting(core, core->place[core->news[at].block] + core->window, now))
            return -1;
    return 0;
}

/* -- iterations */

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
    return !count ? 0 : fail(core,
                             "blocks %s of iteration %" PRId64 " were summed, which this worker was not told to send in it:"
                             " the workers' plans have parted",
                             listed(foreign, count, text, sizeof text), iteration);
}

static int check_blocks(struct core *core, int64_t iteration, const int32_t *blocks, int64_t count) {
    int fits = count > 0 && blocks[0] >= 0 && blocks[count - 1] < core->total;
    for (int64_t at = 1; at < count; at++)
        fits &= blocks[at - 1] < blocks[at];
    char text[256];
    return fits ? 0 : fail(core,
                           "blocks of iteration %" PRId64 " must be one or more of 0 to %" PRId64 ", ascending, got %s",
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
        return fail(core, "iteration %" PRId64 " begins, but %" PRId64 " has open blocks: %s", iteration, core->iteration,
                    listed(missing, count, text, sizeof text));
    }
    if (iteration <= core->iteration)
        return fail(core, "an iteration must come after %" PRId64 ", got %" PRId64, core->iteration, iteration);
    if (!layout_words(&core->layout, 0, lanes))
        return fail(core, "block 0 cannot be sent in lanes of code %d: it has %" PRId64 " words in lanes of %" PRId64 " bits",
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
    core->reach = core->window;
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
        if (deliver(core, block, -1, now))
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
        return without_memory(core);
    memset(core->place, -1, (size_t)core->total * sizeof *core->place);
    for (int64_t at = 0; at < count; at++)
        core->place[blocks[at]] = (int32_t)at;
    if (check_known(core, iteration, core->results, core->place))
        return -1;
    enter_iteration(core, iteration, blocks, count, first, lanes);
    core->probe.done = core->probe.left = 0;
    in_flight_begin(&core->in_flight, core->results->known ? now : NAN);
    if (close_known(core, now))
        return -1;
    if (!core->open_count && !instruct(core, COMPLETE, 0))
        return without_memory(core);
    return pull(core, now);
}

int core_jump(struct core *core, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
              int32_t lanes) {
    core->open_count = 0;
    in_flight_clear(&core->in_flight);
    for (int64_t request = 0; core->waiting_all; request++)
        drop_waiting(core, request);
    return core_begin(core, iteration, now, blocks, count, first, lanes);
}

/* -- the link */

void core_probe_link(struct core *core) {
    core->probe.wanted = 1;
}

/* A number of words that the block has in no lanes. */
static int64_t other_words(const struct core *core, int64_t block) {
    for (int64_t words = 1;; words++) {
        int known = 0;
        for (int lanes = 0; lanes < LANE_CODES; lanes++)
            known |= layout_words(&core->layout, block, lanes) == words;
        if (!known)
            return words;
    }
}

/* A PULL that the switch answers as long as the slot has this block or a later one. */
static struct header query_header(const struct core *core, int64_t block) {
    struct header header = pull_header(core, block);
    header.words = (uint8_t)other_words(core, block);
    return header;
}

/* Whether this worker's part 0 of every open block has left. */
static int all_left(const struct core *core) {
    for (int64_t place = core->closed; place < core->count; place++)
        if (core->open[core->blocks[place]] && !core->launched[request_of(core->blocks[place], 0)])
            return 0;
    return 1;
}

/* Whether so many packets have left that one packet's time is negligible, and the next ones wait for other workers. */
static int is_burst(const struct core *core, int32_t part) {
    const int64_t most = core->count < core->window ? core->count : core->window;
    return core->probe.left > 1 && 2 * core->probe.left >= most && (part || core->waiting_all || all_left(core));
}

/* Send a probe behind the packets that have left, once an iteration, unless a probe is still unanswered. */
static int probe_link(struct core *core, int32_t part, double now) {
    struct link_probe *probe = &core->probe;
    if (!probe->wanted || probe->done || core->regrouping || core->owner || !is_burst(core, part))
        return 0;
    if (probe->asked && now < probe->sent_s + RTO_MAX_S)
        return 0;
    const struct header header = query_header(core, probe->last / KOFN_PARTS);
    if (header.words * KOFN_WORD_BYTES > core->history.room)
        return 0; /* the answer would not fit a buffer */
    probe->asked = probe->done = 1;
    probe->header = header;
    probe->sent_s = now;
    probe->share = (double)probe->left / (double)core->count;
    return send(core, &probe->header, core->zeros, probe->header.words * KOFN_WORD_BYTES, 0);
}

static int same_block(const struct header *one, const struct header *other) {
    return one->generation == other->generation && one->iteration == other->iteration && one->block == other->block;
}

static double link_wait_s(const struct core *core, double now) {
    const double soonest_s = core->in_flight.reordering.soonest_s;
    return fmax(0, now - core->probe.sent_s - (isinf(soonest_s) ? 0 : soonest_s)) / core->probe.share;
}

/* Whether this is the answer to a probe. */
static int probe_hears(struct core *core, const struct header *answer, double now) {
    struct link_probe *probe = &core->probe;
    if (!probe->asked || answer->words != probe->header.words || !same_block(answer, &probe->header))
        return 0;
    probe->asked = 0;
    probe->fresh = 1;
    probe->wait_s = link_wait_s(core, now);
    return 1;
}

/* If this worker's contribution to a later iteration has reached the switch, an unanswered probe was lost. */
static void probe_passed(struct core *core, const struct header *answer, const struct result *result) {
    const int mine = answer->kind == KOFN_LATE || result_parts(result, place_of(core, core->rank));
    if (mine && answer->iteration > core->probe.header.iteration)
        core->probe.asked = 0;
}

double core_take_link_wait(struct core *core, double now) {
    struct link_probe *probe = &core->probe;
    const double waits_s = probe->asked ? link_wait_s(core, fmin(now, probe->sent_s + RTO_MAX_S)) : 0;
    const int longer = waits_s > probe->wait_s;
    if (!probe->fresh && !longer)
        return -1;
    probe->fresh = 0;
    return longer ? waits_s : probe->wait_s;
}

int core_contribute(struct core *core, const struct packed *ready, int64_t count, double now, int32_t part,
                    int32_t counts, int32_t uses) {
    if (core_left_behind(core))
        return 0;
    for (int64_t at = 0; at < count; at++) {
        if (!core->open[ready[at].block])
            continue;
        if (!layout_words(&core->layout, ready[at].block, ready[at].lanes))
            return fail(core, "block %d cannot be sent in lanes of code %d: it has %" PRId64 " words in lanes of %" PRId64
                        " bits", ready[at].block, ready[at].lanes, core->layout.words, core->layout.widest);
        const int32_t in = uses < 0 ? ready[at].lanes : uses;
        const struct waiting waits = {
            .values = ready[at].values,
            .size = ready[at].size,
            .scale = ready[at].scale,
            .lanes = ready[at].lanes,
            .weight = ready[at].weight,
            .flags = in > core->planned ? 1 + in : 0, /* tells the others of narrower lanes than planned */
            .counts = counts,
        };
        put_waiting(core, request_of(ready[at].block, part), &waits);
        if (launch_waiting(core, core->place[ready[at].block], now))
            return -1;
    }
    return probe_link(core, part, now) ? -1 : pull(core, now);
}

void core_in_pieces(struct core *core, const int64_t *level) {
    core->in_flight.in_pieces = 1;
    set_levels(core, level);
}

void core_withdraw(struct core *core, int64_t *requests, int64_t count) {
    for (int64_t at = 0; at < count; at++)
        if (core->waiting[requests[at]].values && !core->launched[requests[at]])
            drop_waiting(core, requests[at]);
        else
            requests[at] = -1;
}

void core_enter(struct core *core, uint32_t generation) {
    core->generation = generation > core->generation ? generation : core->generation;
}

void core_others_reached(struct core *core, int64_t iteration) {
    core->newest = iteration > core->newest ? iteration : core->newest;
}

/* -- results */

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
    return fail(core,
                "block %" PRId64 " of iteration %" PRId64 " has two results: %s here, %s there; the replicas have parted",
                block, iteration, described(known, here, sizeof here), described(other, there, sizeof there));
}

static int check_summed(struct core *core, int64_t block) {
    return core->place[block] >= 0 ? 0
                                   : fail(core,
                                          "blocks [%" PRId64 "] of iteration %" PRId64 " were summed, which this worker was"
                                          " not told to send in it: the workers' plans have parted",
                                          block, core->iteration);
}

static void close_block(struct core *core, int64_t block, int32_t hint, int32_t to_again) {
    core->open[block] = 0;
    core->open_count--;
    for (int part = 0; core->waiting_all && part < KOFN_PARTS; part++)
        drop_waiting(core, request_of(block, part));
    core->news[core->news_count++] = (struct news){block, hint, to_again};
}

/* Forget earlier iterations once all workers have contributed part 0 to this one. A worker that contributes has all earlier
 * sums, or a replica that includes them, and its ledger knows this if it dies. So no worker will request or repeat them. */
static int forget_earlier(struct core *core, const struct result *result) {
    if (!core->everyone)
        return 0;
    for (int rack = 0; rack < core->racks; rack++)
        if ((result->members[member_word(rack, 0)] & core->everyone) != core->everyone)
            return 0;
    core->given = core->iteration;
    return history_forget(&core->history, core->iteration, 0) ? 0 : without_memory(core);
}

/* Keep a result. If it closes a current block, drop this worker's waiting contributions to it. Returns whether the values are
 * kept; -1: an error. */
static int note(struct core *core, int64_t iteration, int64_t block, const struct result *result, int32_t hint,
                int32_t to_again) {
    if (block >= core->total || iteration < core->iteration)
        return 0;
    const int current = iteration == core->iteration && core->results;
    struct iteration_results *known = current ? core->results : history_of(&core->history, iteration);
    if (!known)
        return without_memory(core);
    core->results = core->iteration ? history_find(&core->history, core->iteration) : NULL; /* it may have moved */
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

/* Handle the results that were noted since the last call. */
static int go_on(struct core *core, double now) {
    if (!core->any_news)
        return 0;
    for (int64_t at = 0; at < core->news_count; at++)
        if (deliver(core, core->news[at].block, core->news[at].hint, now))
            return -1;
    if (core->news_count && !core->open_count && !instruct(core, COMPLETE, 0))
        return without_memory(core);
    const int64_t count = answered(core);
    if (count)
        in_flight_answered(&core->in_flight, core->due, count, now);
    const int64_t closed = core->news_count;
    core->news_count = core->any_news = 0;
    if (launch_after(core, closed, now))
        return -1;
    return pull(core, now);
}

/* -- answers */

/* Whether the sum goes to another worker, so that the answer has its members only. */
static int is_short(const struct core *core, const struct header *answer) {
    const int sum = answer->kind == KOFN_RESULT || answer->kind == KOFN_LATE;
    return sum && answer->recipient != KOFN_EVERYONE && answer->recipient != place_of(core, core->rank);
}

/* Fail unless the number of words is right: for a sum, the sum's in these lanes; for a short one, none. A refusal has its
 * request's words: those of the slot's block, unless FORMAT_MISMATCH says that they differ. */
static int check_words(struct core *core, const struct header *answer) {
    const int sum = answer->kind == KOFN_RESULT || answer->kind == KOFN_LATE;
    const int64_t words = answer->block >= core->total ? 0
                          : sum                        ? sum_words(&core->layout, answer->block, answer->lanes)
                                                       : layout_words(&core->layout, answer->block, answer->lanes);
    const int other = answer->kind == KOFN_FORMAT_MISMATCH && answer->flags == KOFN_OTHER_WORDS;
    if (is_short(core, answer) && !answer->words)
        return 0;
    if (words && other != (answer->words == words))
        return 0;
    return fail(core,
                "block %" PRIu32 " of iteration %" PRIu32 " is summed in lanes of code %d with another number of words than"
                " by worker %d, whose blocks have %" PRId64 " in lanes of %" PRId64
                " bits: all workers of a job must have the same job.words and compress.codec",
                answer->block, answer->iteration, answer->lanes, core->rank, core->layout.words, core->layout.widest);
}

/* Fail unless a sum's recipient is the one that this worker knows; else its values might be lost. */
static int check_recipient(struct core *core, const struct header *answer) {
    if (!core->recipient || answer->iteration != core->iteration ||
        answer->recipient == recipient_of(core, answer->block))
        return 0;
    return fail(core, "block %" PRIu32 " of iteration %" PRIu32 " is summed for worker %" PRId64 ", here it is worker %" PRId64
                "'s: the workers' plans have parted", answer->block, answer->iteration, rank_of(core, answer->recipient),
                core->recipient[answer->block]);
}

static int check_racks(struct core *core, const struct header *answer) {
    const int racks = answer->bitmaps ? answer->bitmaps : 1;
    return racks == core->racks ? 0
                                : fail(core, "job.racks must be that of the switches, %d, got %d", racks, core->racks);
}

/* The members of all racks: in front of the values in a tree, else in the header. */
static void members_of(const struct header *answer, const uint8_t *body, uint64_t *members) {
    if (!answer->bitmaps)
        memcpy(members, answer->members, sizeof answer->members);
    for (int rack = 0; rack < answer->bitmaps; rack++) {
        uint64_t parts[KOFN_PARTS];
        header_members(body + rack * KOFN_MEMBERS_BYTES, parts);
        members[member_word(rack, 0)] = parts[0];
    }
}

/* Handle the switch's result of a block. */
static int result_in(struct core *core, struct packet *packet) {
    const struct header *header = &packet->header;
    if (header->block >= core->total)
        return 0; /* another job's: ignored */
    if (check_words(core, header) || check_racks(core, header) || check_recipient(core, header))
        return -1;
    struct result result = {
        .values = packet->body + core->history.ahead,
        .size = packet->size - (int32_t)core->history.ahead,
        .scale = header->scale,
        .lanes = header->lanes,
        .k = header->k,
        .count = header->count,
        .weight = header->weight,
    };
    members_of(header, packet->body, result.members);
    probe_passed(core, header, &result);
    const int uses = header->flags & ~KOFN_AGAIN, told = header->kind == KOFN_RESULT && uses > 1 && uses <= LANE_CODES;
    const int noted = note(core, header->iteration, header->block, &result, told ? uses - 1 : -1,
                           (header->flags & KOFN_AGAIN) != 0);
    packet->taken = noted > 0;
    return noted < 0 ? -1 : 0;
}

/* Whether this is the answer to a slot query, and only that. */
static int query_hears(struct slot_query *query, const struct header *answer) {
    if (!query->asked || answer->kind != KOFN_FORMAT_MISMATCH || answer->words != query->header.words ||
        !same_block(answer, &query->header))
        return 0;
    query->answered = 1;
    memcpy(query->members, answer->members, sizeof query->members);
    return 1;
}

/* The slot has a later block. An awaited request stays in flight, so that the timer retransmits it. */
static int stale(struct core *core, struct flight *flight, double now) {
    core->statistics.stale++;
    in_flight_heard(&core->in_flight, now);
    return ask_peers(core, flight);
}

/* The slot sums at another scale or in other lanes: encode again, or PULL in these lanes if the others have finished. */
static int refused(struct core *core, struct flight *flight, const struct header *answer, double now) {
    core->statistics.refused++;
    if (check_words(core, answer))
        return -1;
    const struct header mine = flight->header;
    const int pulls = mine.kind == KOFN_PULL; /* its scale is ignored */
    if (mine.lanes == answer->lanes && (pulls || mine.scale == answer->scale))
        return 0; /* answers an earlier attempt, or is a copy: networks duplicate and delay packets */
    core->slot_lanes[mine.block] = (int8_t)answer->lanes;
    in_flight_remove(&core->in_flight, flight);
    if (pulls || core_left_behind(core))
        return pull(core, now);
    core->in_flight.disordered = 1;
    struct instruction *again = instruct(core, ENCODE_AGAIN, mine.block);
    if (!again)
        return without_memory(core);
    again->part = mine.part;
    again->counts = mine.count;
    again->scale = answer->scale;
    again->lanes = answer->lanes;
    return 0;
}

/* A leaf wants this contribution again, so that what it holds leaves. That is no loss: the flight's times stay. */
static int repeat(struct core *core, const struct flight *flight, double now) {
    const int in_switch = flight->header.kind == KOFN_CONTRIBUTE && flight->sent_s <= now;
    return in_switch ? send(core, &flight->header, flight->values, flight->size, 0) : 0;
}

/* Handle STALE, FORMAT_MISMATCH or ADDED; ignore it unless its request is in flight. */
static int not_taken(struct core *core, const struct header *answer, double now) {
    if (answer->iteration != core->iteration || answer->block >= core->total || answer->part >= KOFN_PARTS)
        return 0;
    struct flight *flight = core->in_flight.by_request[request_of(answer->block, answer->part)];
    if (!flight)
        return 0;
    return answer->kind == KOFN_ADDED   ? repeat(core, flight, now)
           : answer->kind == KOFN_STALE ? stale(core, flight, now)
                                        : refused(core, flight, answer, now);
}

static int packet_in(struct core *core, struct packet *packet, double now) {
    const struct header *header = &packet->header;
    if (header->job != core->job || header->kind < KOFN_RESULT || header->kind > KOFN_ADDED) {
        core->statistics.foreign++;
        return 0;
    }
    if (header->generation != core->generation) {
        core->statistics.other_generation++;
        return 0;
    }
    if (header->kind == KOFN_RESULT || header->kind == KOFN_LATE)
        return result_in(core, packet);
    if (go_on(core, now))
        return -1;
    const int heard = probe_hears(core, header, now) | query_hears(&core->query, header);
    return heard ? 0 : not_taken(core, header, now);
}

int core_packets_in(struct core *core, struct packet *packets, int64_t count, double now) {
    for (int64_t at = 0; at < count; at++)
        if (packet_in(core, packets + at, now))
            return -1;
    return go_on(core, now);
}

int core_result_in(struct core *core, int64_t iteration, int64_t block, const struct result *result, double now) {
    if (!result->weight) {
        core_others_reached(core, iteration + 1);
        return pull(core, now);
    }
    uint8_t *buffer;
    if (!result->values || result->size > core->history.room - core->history.ahead)
        return 0;
    if (!(buffer = core_buffer(core)))
        return without_memory(core);
    struct result copied = *result;
    copied.values = buffer + core->history.ahead;
    memcpy(copied.values, result->values, (size_t)result->size);
    const int noted = note(core, iteration, block, &copied, -1, 0);
    if (noted <= 0)
        core_release(core, buffer);
    return noted < 0 ? -1 : go_on(core, now);
}

/* -- time */

/* Retransmit a request, or send an expected PULL for the first time. After several unanswered PULLs ask the peers, except for
 * an owned block, which its owner has not sent yet. */
static int send_again(struct core *core, struct flight *flight, double now) {
    const int pulls = flight->header.kind == KOFN_PULL;
    const int expected = pulls && core->owner && flight->attempts == 1;
    in_flight_again(&core->in_flight, flight, now);
    core->statistics.pulls += expected;
    core->statistics.retransmissions += !expected;
    if (send(core, &flight->header, flight->values, flight->size, flight->launch))
        return -1;
    return pulls && !core->owner && flight->attempts >= PULLS_BEFORE_PEERS ? ask_peers(core, flight) : 0;
}

int core_timer(struct core *core, double now) {
    const int64_t count = in_flight_due(&core->in_flight, now, core->due);
    for (int64_t at = 0; at < count; at++)
        if (send_again(core, core->in_flight.by_request[core->due[at]], now))
            return -1;
    return 0;
}

void core_mark_sent_at(struct core *core, int64_t request, int64_t launch, double at_s) {
    struct flight *flight = core->in_flight.by_request[request];
    if (flight && flight->launch == launch)
        in_flight_leaves(&core->in_flight, flight, at_s);
    if (!launch && core->probe.asked && request == request_of(core->probe.header.block, 0))
        core->probe.sent_s = at_s;
}

int core_ask_slot(struct core *core) {
    if (core->regrouping || !core->open_count)
        return 0;
    pass_closed(core);
    const struct header header = query_header(core, core->blocks[core->closed]);
    struct slot_query *query = &core->query;
    query->answered &= query->asked && same_block(&query->header, &header);
    query->asked = 1;
    query->header = header;
    query->block = header.block;
    return send(core, &header, core->zeros, header.words * KOFN_WORD_BYTES, 0);
}

/* -- the switch's restart */

/* Let these contributions wait for resume(), which sends them again. */
static void wait_again(struct core *core, const struct flight *flight) {
    for (; flight; flight = flight->later)
        if (flight->header.kind == KOFN_CONTRIBUTE) {
            const struct header *mine = &flight->header;
            const struct waiting waits = {flight->values, (int32_t)flight->size, mine->scale, mine->lanes,
                                          mine->flags & ~KOFN_AGAIN, mine->count, mine->weight};
            put_waiting(core, flight->request, &waits);
        }
}

void core_regroup(struct core *core, uint32_t generation) {
    if (generation <= core->generation)
        return; /* known already */
    core->generation = generation;
    core->regrouping = 1;
    core->statistics.regroups++;
    core->probe.asked = 0;
    wait_again(core, core->in_flight.awaited.first);
    wait_again(core, core->in_flight.merged.first);
    in_flight_clear(&core->in_flight);
    memset(core->slot_lanes, -1, (size_t)core->total);
    in_flight_begin(&core->in_flight, NAN);
}

int core_resume(struct core *core, double now) {
    core->regrouping = 0;
    for (int64_t place = 0; place < core->count && core->waiting_all; place++)
        if (launch_waiting(core, place, now))
            return -1;
    return pull(core, now);
}

/* -- for callers that are not C */

int core_datagram_in(struct core *core, const uint8_t *header, const uint8_t *body, int64_t size, double now) {
    struct packet packet = {.header = header_read(header), .body = core_buffer(core), .size = (int32_t)size};
    if (!packet.body)
        return without_memory(core);
    memcpy(packet.body, body, (size_t)(size < core->history.room ? size : core->history.room));
    const int failed = packet_in(core, &packet, now);
    if (!packet.taken)
        core_release(core, packet.body);
    return failed;
}

int core_packets_done(struct core *core, double now) {
    return go_on(core, now);
}

int64_t core_take(struct core *core, struct instruction *into, struct result *results, int64_t room) {
    const int64_t count = core->instructions_count < room ? core->instructions_count : room;
    for (int64_t at = 0; at < count; at++) {
        into[at] = core->instructions[at];
        if (into[at].kind == DELIVER)
            results[at] = history_one(&core->history, into[at].iteration, into[at].block);
    }
    const int64_t left = core->instructions_count - count;
    memmove(core->instructions, core->instructions + count, (size_t)left * sizeof *core->instructions);
    core->instructions_count = left;
    core->urgent_count = left ? core->urgent_count : 0;
    return count;
}

void core_done(struct core *core) {
    core->instructions_count = core->urgent_count = 0;
}

const char *core_error(const struct core *core) {
    return core->error;
}

void core_read(const struct core *core, struct core_places *places) {
    *places = (struct core_places){core->blocks, core->open, core->waiting, &core->statistics, &core->query};
}

int64_t core_next_results(const struct core *core, int64_t iteration) {
    return history_next(&core->history, iteration);
}

int64_t core_results(const struct core *core, int64_t iteration, uint32_t *blocks, struct result *results) {
    return history_read(&core->history, iteration, blocks, results);
}
