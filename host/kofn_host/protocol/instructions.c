/* The core's output for its caller: instructions, in order, and the sentence of an error.
 *
 * This part knows neither blocks nor slots: the other parts decide what to send and when.
 */
#include "core_parts.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int core_fail(struct core *core, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(core->error, sizeof core->error, format, arguments);
    va_end(arguments);
    return -1;
}

int core_without_memory(struct core *core) {
    return core_fail(core, "worker %d: no memory for the protocol's state", core->rank);
}

const char *core_error(const struct core *core) {
    return core->error;
}

struct instruction *instruct(struct core *core, enum instruction_kind kind, int64_t block) {
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

int instruct_send(struct core *core, const struct header *header, const uint8_t *values, int64_t size, int64_t launch) {
    struct instruction *next = instruct(core, SEND, header->block);
    if (!next)
        return core_without_memory(core);
    next->part = header->part;
    next->launch = launch;
    next->values = values;
    next->size = size;
    if (header->kind == KOFN_CONTRIBUTE)
        core->statistics.wire_bytes += next->size;
    header_write(header, next->header);
    return 0;
}

int instruct_deliver(struct core *core, int64_t block, int32_t hint, double now) {
    struct instruction *next = instruct(core, DELIVER, block);
    if (!next)
        return core_without_memory(core);
    next->hint = hint;
    next->time_s = now;
    return 0;
}

int instruct_ask_peers(struct core *core, struct flight *flight, int64_t stale_in) {
    if (flight->asked_peers)
        return 0; /* at most once per transmission of the request */
    flight->asked_peers = 1;
    struct instruction *ask = instruct(core, ASK_PEERS, flight->header.block);
    if (!ask)
        return core_without_memory(core);
    ask->stale_in = stale_in;
    return 0;
}

int64_t core_take(struct core *core, struct instruction *into, struct result *results, int64_t room) {
    const int64_t count = core->instructions_count < room ? core->instructions_count : room;
    for (int64_t at = 0; at < count; at++) {
        into[at] = core->instructions[at];
        if (into[at].kind == DELIVER)
            results[at] = history_result(&core->history, into[at].iteration, into[at].block);
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
