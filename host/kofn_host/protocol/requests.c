/* The requests of the current iteration: contributions that wait for the window, contributions that leave, and PULLs.
 *
 * This part knows when a block may leave, and its packet's header. It knows no answers (packets.c, results.c) and no times of
 * retransmission (in_flight.c).
 */
#include "core_parts.h"

void requests_wait(struct core *core, int64_t request, const struct waiting *ready) {
    requests_drop(core, request);
    core->waiting[request] = *ready;
    core->waiting_all++;
    core->waiting_count += ready->counts != 0;
}

/* Count the closed blocks before the first open one. Closed blocks never reopen. */
void requests_pass_closed(struct core *core) {
    while (core->closed < core->count && !core->open[core->blocks[core->closed]])
        core->closed++;
}

/* Whether the slot of the block at this place is free for the block. All blocks of earlier iterations are closed. */
int requests_may_leave(const struct core *core, int64_t place) {
    const int64_t before = place - core->reach;
    return before < 0 || (core->owner ? before < core->closed : !core->open[core->blocks[before]]);
}

uint16_t requests_recipient(const struct core *core, int64_t block) {
    const int64_t rank = core->recipient ? core->recipient[block] : KOFN_EVERYONE;
    return rank == KOFN_EVERYONE ? KOFN_EVERYONE : place_of(core, rank);
}

static int64_t words_of(const struct core *core, int64_t block, int lanes) {
    return block == core->layout.blocks ? layout_words(&core->layout, block, lanes) : core->words[lanes];
}

/* The lanes in which a block is summed: the lanes that its slot has reported, else the planned lanes. */
static int lanes_of(const struct core *core, int64_t block) {
    if (core->slot_lanes[block] >= 0)
        return core->slot_lanes[block];
    return block == layout_summary(&core->layout) ? 0 : core->planned;
}

static struct header header_of(const struct core *core, int64_t request, const struct waiting *ready) {
    const int64_t block = request / KOFN_PARTS;
    const int64_t number = core->first + core->place[block];
    return (struct header){
        .version = KOFN_VERSION,
        .kind = KOFN_CONTRIBUTE,
        .job = (uint8_t)core->job,
        .worker = (uint8_t)place_of(core, core->rank),
        .recipient = requests_recipient(core, block),
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

struct header requests_pull_header(const struct core *core, int64_t block) {
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
        core->probe.late |= header->part || header->weight > KOFN_WEIGHT_UNIT;
        core->probe.last = request;
        core->probe.weight = header->weight;
    }
    return flight ? instruct_send(core, header, values, size, flight->launch) : core_without_memory(core);
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

/* Once other workers are ahead, they have closed the blocks that are open here. PULL every open block that the window allows and
 * that has no request; do not wait for this worker's gradient. */
int requests_pull(struct core *core, double now) {
    if (!core_left_behind(core) || core->regrouping || core->follows)
        return 0;
    for (int64_t place = 0; place < core->count; place++) {
        const int64_t block = core->blocks[place];
        if (!core->open[block] || !requests_may_leave(core, place) || asked(core, block))
            continue;
        core->statistics.pulls++;
        const struct header header = requests_pull_header(core, block);
        if (launch(core, request_of(block, 0), &header, core->zeros, header.words * KOFN_WORD_BYTES, now))
            return -1;
    }
    return 0;
}

/* Send the waiting parts of the block at this place, if the block may leave. */
int requests_launch(struct core *core, int64_t place, double now) {
    if (core->regrouping || place >= core->count || !requests_may_leave(core, place))
        return 0;
    for (int part = 0; part < KOFN_PARTS; part++) {
        const int64_t request = request_of(core->blocks[place], part);
        const struct waiting ready = core->waiting[request];
        if (!ready.values)
            continue;
        requests_drop(core, request);
        const struct header header = header_of(core, request, &ready);
        if (launch(core, request, &header, ready.values, ready.size, now))
            return -1;
    }
    return 0;
}
