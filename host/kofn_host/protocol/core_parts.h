/* What the parts of the core share; no other file includes it. The functions are documented in their files. */
#pragma once
#include <stddef.h>

#include "core.h"

#pragma GCC visibility push(hidden) /* the parts call each other directly */

/* -- instructions.c */

int core_fail(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
int core_without_memory(struct core *core);
struct instruction *instruct(struct core *core, enum instruction_kind kind, int64_t block);
int instruct_send(struct core *core, const struct header *header, const uint8_t *values, int64_t size, int64_t launch);
int instruct_deliver(struct core *core, int64_t block, int32_t hint, double now);
int instruct_ask_peers(struct core *core, struct flight *flight, int64_t stale_in);

/* -- requests.c */

static inline int64_t request_of(int64_t block, int64_t part) {
    return block * KOFN_PARTS + part;
}

static inline void requests_drop(struct core *core, int64_t request) {
    struct waiting *waits = &core->waiting[request];
    if (!waits->values)
        return;
    core->waiting_all--;
    core->waiting_count -= waits->counts != 0;
    waits->values = NULL;
}

/* A worker's place: its rack, and its rank in the rack. */
static inline uint16_t place_of(const struct core *core, int64_t rank) {
    return (uint16_t)(rank / core->rack_workers * RACK_PLACES + rank % core->rack_workers);
}

void requests_wait(struct core *core, int64_t request, const struct waiting *ready);
void requests_pass_closed(struct core *core);
int requests_may_leave(const struct core *core, int64_t place);
uint16_t requests_recipient(const struct core *core, int64_t block);
struct header requests_pull_header(const struct core *core, int64_t block);
int requests_pull(struct core *core, double now);
int requests_launch(struct core *core, int64_t place, double now);

/* -- owned_blocks.c */

static inline void set_levels(struct core *core, const int64_t *level) {
    core->in_flight.level = level;
    core->in_flight.levels = core->layout.blocks;
}

int owned_blocks_launch(struct core *core, double now);

/* -- slot_query.c */

struct header slot_query_header(const struct core *core, int64_t block);
int slot_query_hears(struct slot_query *query, const struct header *answer);

/* -- link_probe.c */

/* The next iteration begins; all blocks of the present one are closed. */
void link_probe_begin(struct core *core);
int link_probe_send(struct core *core, int32_t part, double now);
int link_probe_hears(struct core *core, const struct header *answer, double now);
void link_probe_passed(struct core *core, const struct header *answer, const struct result *result);

/* -- results.c */

int results_note(struct core *core, int64_t iteration, int64_t block, const struct result *result, int32_t hint,
                int32_t to_again);
int results_follow(struct core *core, double now);

#pragma GCC visibility pop
