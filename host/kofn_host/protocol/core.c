/* Opening and closing a core, and the callers' calls that need only a few lines; core.h explains the protocol.
 *
 * The parts of the core, in the order of a block's life:
 *     iterations.c    an iteration begins
 *     requests.c      blocks wait for the window and leave; owned_blocks.c does the same for blocks that one worker owns
 *     packets.c       the switch answers
 *     results.c       a result closes its block
 *     restart.c       the switch has lost its slots
 *     slot_query.c    the switch names the members of a block; link_probe.c measures how long packets wait in the link
 *     instructions.c  the caller gets instructions
 * in_flight.c decides when a request is retransmitted, history.c keeps results. core_parts.h has what the parts share. No part
 * knows sockets, clocks or threads.
 */
#include "core_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PULLS_BEFORE_PEERS = 3 }; /* unanswered requests for a closed block before its slot counts as lost */

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
    const int64_t ahead = racks > 1 ? racks * KOFN_MEMBERS_BYTES : 0, values = layout_most_words(layout) * KOFN_WORD_BYTES;
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

int core_contribute(struct core *core, const struct packed *ready, int64_t count, double now, int32_t part,
                    int32_t counts, int32_t uses) {
    if (core_left_behind(core))
        return 0;
    for (int64_t at = 0; at < count; at++) {
        if (!core->open[ready[at].block])
            continue;
        if (!layout_words(&core->layout, ready[at].block, ready[at].lanes))
            return core_fail(core, "block %d cannot be sent in lanes of code %d: it has %" PRId64 " words in lanes of %" PRId64
                             " bits", ready[at].block, ready[at].lanes, core->layout.words, core->layout.widest);
        const int32_t in = uses < 0 ? ready[at].lanes : uses;
        const struct waiting waits = {
            .values = ready[at].values,
            .size = ready[at].size,
            .scale = ready[at].scale,
            .lanes = ready[at].lanes,
            .weight = ready[at].weight,
            .flags = in > core->planned ? 1 + in : 0, /* tells the other workers that the lanes are narrower than planned */
            .counts = counts,
        };
        requests_wait(core, request_of(ready[at].block, part), &waits);
        if (requests_launch(core, core->place[ready[at].block], now))
            return -1;
    }
    return link_probe_send(core, part, now) ? -1 : requests_pull(core, now);
}

void core_withdraw(struct core *core, int64_t *requests, int64_t count) {
    for (int64_t at = 0; at < count; at++)
        if (core->waiting[requests[at]].values && !core->launched[requests[at]])
            requests_drop(core, requests[at]);
        else
            requests[at] = -1;
}

/* Retransmit a request, or send an expected PULL for the first time. After several unanswered PULLs ask the peers. Never ask
 * the peers for an owned block: its owner has not sent the block yet. */
static int send_again(struct core *core, struct flight *flight, double now) {
    const int pulls = flight->header.kind == KOFN_PULL;
    const int expected = pulls && core->owner && flight->attempts == 1;
    in_flight_again(&core->in_flight, flight, now);
    core->statistics.pulls += expected;
    core->statistics.retransmissions += !expected;
    if (instruct_send(core, &flight->header, flight->values, flight->size, flight->launch))
        return -1;
    return pulls && !core->owner && flight->attempts >= PULLS_BEFORE_PEERS ? instruct_ask_peers(core, flight, -1) : 0;
}

int core_timer(struct core *core, double now) {
    const int64_t count = in_flight_due(&core->in_flight, now, core->due);
    for (int64_t at = 0; at < count; at++)
        if (send_again(core, core->in_flight.by_request[core->due[at]], now))
            return -1;
    return 0;
}

/* Whether a slot query or probe of this request is the unanswered probe. */
static int is_probe(const struct core *core, int64_t request) {
    return core->probe.asked && request == request_of(core->probe.header.block, 0);
}

void core_mark_sent_at(struct core *core, int64_t request, int64_t launch, double at_s) {
    struct flight *flight = core->in_flight.by_request[request];
    if (flight && flight->launch == launch)
        in_flight_leaves(&core->in_flight, flight, at_s);
    if (!launch && is_probe(core, request))
        core->probe.sent_s = at_s;
}

void core_probe_leaves(struct core *core, int64_t request, int64_t left_bytes, double now) {
    if (!is_probe(core, request))
        return;
    core->probe.sent_bytes = left_bytes;
    core->probe.sent_s = now;
}

void core_enter(struct core *core, uint32_t generation) {
    core->generation = generation > core->generation ? generation : core->generation;
}

int core_follow(struct core *core, int32_t follows, double now) {
    core->follows = follows;
    if (!core->owner)
        core->reach = follows ? core->slots : core->window;
    for (int64_t place = core->closed; core->waiting_all && place < core->count; place++)
        if (requests_launch(core, place, now))
            return -1;
    return requests_pull(core, now);
}

double core_deadline_s(const struct core *core) {
    return in_flight_deadline_s(&core->in_flight);
}

int64_t core_link_bytes(const struct core *core, const uint8_t *header, int64_t size) {
    const struct header read = header_read(header);
    const int votes = core->words[KOFN_VOTES] && read.lanes == KOFN_VOTES && read.recipient == KOFN_EVERYONE;
    return KOFN_FRAME_BYTES + KOFN_HEADER_BYTES + size * (votes ? core->layout.planes : 1);
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
