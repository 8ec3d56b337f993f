/* A new generation of slots: after a restart of the switch the core stays silent until all workers have regrouped.
 *
 * This part does not know how workers agree on a generation.
 */
#include "core_parts.h"

#include <math.h>
#include <string.h>

/* Let these contributions wait for resume(), which retransmits them. */
static void wait_again(struct core *core, const struct flight *flight) {
    for (; flight; flight = flight->later)
        if (flight->header.kind == KOFN_CONTRIBUTE) {
            const struct header *mine = &flight->header;
            const struct waiting waits = {flight->values, (int32_t)flight->size, mine->scale, mine->lanes,
                                          mine->flags & ~KOFN_AGAIN, mine->count, mine->weight};
            requests_wait(core, flight->request, &waits);
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
        if (requests_launch(core, place, now))
            return -1;
    return requests_pull(core, now);
}
