/* The results that a worker holds for itself and for peers: complete recent results, and only the members of older results.
 *
 * Sums need memory, so only the sums of the latest `keep` iterations are kept. Members are kept for `keep_members` iterations:
 * a worker that died in iteration i and rejoins much later must still find out which of its contributions to i were counted.
 */
#pragma once
#include "header.h"

enum {
    MEMBER_WORDS = KOFN_PARTS + KOFN_RACKS_MAX - 1, /* a tree's workers contribute part 0 alone */
    RACK_RANKS = KOFN_RACK_WORKERS_MAX, /* of a rack; a worker's place is RACK_PLACES * rack + rank in the rack */
    RACK_PLACES = KOFN_PARTS * RACK_RANKS,
};

static inline int64_t member_word(int64_t rack, int64_t part) {
    return rack ? KOFN_PARTS - 1 + rack : part;
}

/* A closed block: the sum as on the wire, and its members. */
struct result {
    uint8_t *values; /* NULL: unknown, or only the members are known */
    int32_t size, scale, lanes, k, count; /* `count`: contributions that count among the k */
    uint32_t weight; /* of its gradients, in 1 / WEIGHT_UNIT */
    uint64_t members[MEMBER_WORDS]; /* bit r of members[member_word(rack, p)]: part p of rank r of this rack */
};

/* The parts of the worker at a place in a result: bit p for part p. */
static inline int64_t result_parts(const struct result *result, int64_t place) {
    const int64_t rack = place / RACK_PLACES, rank = place % RACK_PLACES;
    int64_t parts = 0;
    for (int part = 0; part < (rack ? 1 : KOFN_PARTS); part++)
        parts |= (int64_t)(result->members[member_word(rack, part)] >> rank & 1) << part;
    return parts;
}

struct iteration_results {
    int64_t iteration;
    int64_t known;          /* results with values */
    struct result *results; /* by block */
};

/* The members of the blocks of an iteration whose sums are forgotten. */
struct iteration_members {
    int64_t iteration, count;
    int32_t size;     /* bytes of a bitmap, little-endian, as many as the longest bitmap needs */
    uint32_t *blocks; /* NULL: the first `count` blocks */
    uint8_t *bitmaps;
};

struct history {
    int64_t blocks, room; /* blocks of an iteration; bytes of a buffer */
    int64_t ahead;        /* bytes in a buffer before the values: a tree's bitmaps */
    int64_t keep, keep_members;
    struct iteration_results *whole; /* by iteration, ascending: `first` to `end` */
    int64_t first, end, capacity;
    struct iteration_members *members;
    int64_t members_first, members_end, members_capacity;
    uint8_t **unused; /* buffers, which are not in the cache: so none of them points to the next one */
    int64_t unused_count, unused_capacity;
};

int history_open(struct history *history, int64_t blocks, int64_t ahead, int64_t values, int64_t keep,
                 int64_t keep_members);
void history_close(struct history *history);

/* Take a buffer of `room` bytes, for everything in an answer behind its header; NULL without memory. A result's values lie
 * `ahead` bytes behind the buffer's beginning. */
uint8_t *history_buffer(struct history *history);
/* Give a buffer back. */
void history_release(struct history *history, uint8_t *buffer);

/* An iteration's results, created if there are none; NULL without memory. */
struct iteration_results *history_of(struct history *history, int64_t iteration);
/* An iteration's results; NULL if there are none. */
struct iteration_results *history_find(const struct history *history, int64_t iteration);
/* The first iteration from this one on with known results; -1: none. */
int64_t history_next(const struct history *history, int64_t iteration);
/* Forget the sums of iterations before `iteration` - `keep`, and old members. Returns whether there was memory for the members of
 * the forgotten sums. */
int history_forget(struct history *history, int64_t iteration, int64_t keep);
/* Copy the known blocks of an iteration, ascending, and their results, without values if only the members are known. Returns
 * their number; both arrays have room for `blocks`. */
int64_t history_read(const struct history *history, int64_t iteration, uint32_t *blocks, struct result *results);
/* The known result of a block; all 0 if unknown. */
struct result history_result(const struct history *history, int64_t iteration, int64_t block);
