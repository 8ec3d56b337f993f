/* The probe of the link measures how long a gradient's packets wait in the link.
 *
 * This part delays no packet and changes no timer.
 */
#include "core_parts.h"

#include <math.h>

void core_probe_link(struct core *core) {
    core->probe.wanted = 1;
}

void link_probe_begin(struct core *core) {
    struct link_probe *probe = &core->probe;
    probe->before = core->count ? slot_query_header(core, core->blocks[core->count - 1]) : (struct header){0};
    probe->done = probe->late = 0;
    probe->left = 0;
}

/* Whether this worker's part 0 of every open block has left. */
static int all_left(const struct core *core) {
    for (int64_t place = core->closed; place < core->count; place++)
        if (core->open[core->blocks[place]] && !core->launched[request_of(core->blocks[place], 0)])
            return 0;
    return 1;
}

/* Whether so many packets have left that one packet's time is negligible, and the next packets wait for other workers. */
static int is_burst(const struct core *core, int32_t part) {
    const int64_t most = core->count < core->window ? core->count : core->window;
    return core->probe.left > 1 && 2 * core->probe.left >= most && (part || core->waiting_all || all_left(core));
}

/* Send a probe behind the packets that have left, once an iteration, unless a probe is still unanswered. */
int link_probe_send(struct core *core, int32_t part, double now) {
    struct link_probe *probe = &core->probe;
    if (!probe->wanted || probe->done || core->regrouping || core->owner || !is_burst(core, part))
        return 0;
    if (probe->asked && now < probe->sent_s + RTO_MAX_S)
        return 0;
    probe->before_all = probe->late && probe->before.words;
    struct header header = probe->before_all ? probe->before : slot_query_header(core, probe->last / KOFN_PARTS);
    header.generation = (uint32_t)core->generation;
    header.weight = probe->before_all ? UINT32_MAX : probe->weight; /* its turn in the pacer */
    if (header.words * KOFN_WORD_BYTES > core->history.room)
        return 0; /* the answer would not fit a buffer */
    probe->asked = probe->done = 1;
    probe->header = header;
    probe->sent_s = now;
    probe->sent_in = core->iteration;
    probe->share = probe->before_all ? 1 : (double)probe->left / (double)core->count;
    return instruct_send(core, &probe->header, core->zeros, probe->header.words * KOFN_WORD_BYTES, 0);
}

static struct link_wait wait_until(const struct core *core, double now, int answered) {
    const struct link_probe *probe = &core->probe;
    const double soonest_s = core->in_flight.reordering.soonest_s;
    const double wait_s = fmax(0, now - probe->sent_s - (isinf(soonest_s) ? 0 : soonest_s));
    return (struct link_wait){
        .wait_s = wait_s / probe->share,
        .sent_s = probe->sent_s,
        .passed_s = probe->sent_s + wait_s,
        .sent_bytes = (double)probe->sent_bytes,
        .before_all = probe->before_all,
        .answered = answered,
        .share = probe->share,
    };
}

/* Whether this is the answer to a probe. */
int link_probe_hears(struct core *core, const struct header *answer, double now) {
    struct link_probe *probe = &core->probe;
    if (!probe->asked || answer->words != probe->header.words || !header_same_block(answer, &probe->header))
        return 0;
    probe->asked = 0;
    probe->fresh = 1;
    probe->waited = wait_until(core, now, 1);
    return 1;
}

/* If this worker's contribution to a later iteration has reached the switch, an unanswered probe was lost. */
void link_probe_passed(struct core *core, const struct header *answer, const struct result *result) {
    const int mine = answer->kind == KOFN_LATE || result_parts(result, place_of(core, core->rank));
    if (mine && answer->iteration > core->probe.sent_in)
        core->probe.asked = 0;
}

int core_take_link_wait(struct core *core, double now, struct link_wait *taken) {
    struct link_probe *probe = &core->probe;
    int found = probe->fresh;
    *taken = probe->waited;
    probe->fresh = 0;
    if (probe->asked) {
        const struct link_wait so_far = wait_until(core, fmin(now, probe->sent_s + RTO_MAX_S), 0);
        if (so_far.wait_s > taken->wait_s)
            *taken = so_far, found = 1;
    }
    return found;
}
