/* Owned blocks: only one worker contributes to a block, and the other workers expect the result (core.h has the rule of the
 * window).
 *
 * This part decides which blocks leave and which are expected. It does not read the blocks' results.
 */
#include "core_parts.h"

#include <inttypes.h>

/* Await the result of another worker's block, which may be in its slot by now. The result counts as the answer to a PULL. The PULL
 * is sent only when its first retransmission would be due. */
static int expect(struct core *core, int64_t block, double now) {
    const struct header header = requests_pull_header(core, block);
    const int64_t size = header.words * KOFN_WORD_BYTES;
    const int expected = in_flight_expect(&core->in_flight, request_of(block, 0), &header, core->zeros, size, now) != NULL;
    return expected ? 0 : core_without_memory(core);
}

/* Handle the blocks that may leave now that earlier blocks have closed: send this worker's blocks, and expect the other
 * workers' blocks. */
int owned_blocks_launch(struct core *core, double now) {
    requests_pass_closed(core);
    for (; core->reached < core->count && requests_may_leave(core, core->reached); core->reached++) {
        const int64_t block = core->blocks[core->reached];
        if (!core->open[block])
            continue;
        if (core->owner[block] == core->rank ? requests_launch(core, core->reached, now) : expect(core, block, now))
            return -1;
    }
    return 0;
}

int core_owned(struct core *core, const int64_t *owner, int64_t span, double now) {
    const int64_t most = core->slots / 2 + 1 - span;
    if (most < 1)
        return core_fail(core, "blocks that may each be another worker's must be at most %" PRId64 " (half of %" PRId64
                         " slots), got %" PRId64, core->slots / 2, core->slots, span);
    core->owner = owner;
    core->reach = most < core->window ? most : core->window;
    core->in_flight.owned = 1;
    set_levels(core, owner); /* each owner sends in one order */
    return owned_blocks_launch(core, now);
}

void core_received(struct core *core, const int64_t *recipient) {
    core->recipient = recipient;
}
