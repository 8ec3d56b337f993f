/* The results that a worker has, for itself and for peers who lack them: whole ones, and of older ones the members.
 *
 * The sums of the latest `keep` iterations take memory. Who was counted is kept for `keep_members` iterations: a worker
 * that died in iteration i and comes back long after must still learn what of i was counted.
 */
#pragma once
#include "header.h"

/* A closed block: the sum as on the wire, and what is in it. */
struct result {
    uint8_t *values; /* NULL: not known, or only its members are */
    int32_t size, scale, lanes, k, count; /* `count` of the contributions in it count among the k */
    uint32_t weight; /* of the gradients in it, in 1 / WEIGHT_UNIT */
    uint64_t members[KOFN_PARTS];
};

struct iteration_results {
    int64_t iteration;
    int64_t known;          /* results with values */
    struct result *results; /* by block */
};

/* Who was in the blocks of an iteration whose sums are forgotten. */
struct iteration_members {
    int64_t iteration, count;
    int32_t size;     /* of a bitmap, in bytes, little-endian: as long as the longest needs to be */
    uint32_t *blocks; /* NULL: the first `count` ones */
    uint8_t *bitmaps;
};

struct history {
    int64_t blocks, room; /* blocks of an iteration; bytes of the longest result */
    int64_t keep, keep_members;
    struct iteration_results *whole; /* by iteration, ascending: `first` to `end` */
    int64_t first, end, capacity;
    struct iteration_members *members;
    int64_t members_first, members_end, members_capacity;
    struct buffer *unused;
};

int history_open(struct history *history, int64_t blocks, int64_t room, int64_t keep, int64_t keep_members);
void history_close(struct history *history);

/* Memory for a result's values, `room` bytes, and back; NULL without memory. */
uint8_t *history_buffer(struct history *history);
void history_release(struct history *history, uint8_t *buffer);

/* An iteration's, made where there is none; NULL without memory. */
struct iteration_results *history_of(struct history *history, int64_t iteration);
/* The same, NULL where there is none. */
struct iteration_results *history_find(const struct history *history, int64_t iteration);
/* Of what is known of iterations from this one on, the first; -1: nothing. */
int64_t history_next(const struct history *history, int64_t iteration);
/* Of what is before this iteration leave the sums of the latest `keep` ones, and members; whether there was memory for
 * these. */
int history_forget(struct history *history, int64_t iteration, int64_t keep);
/* Everything known of an iteration: its blocks ascending, and of each its result, without values where only the members
 * are known. How many; arrays have room for `blocks`. */
int64_t history_read(const struct history *history, int64_t iteration, uint32_t *blocks, struct result *results);
/* What is known of a block; nothing: all 0. */
struct result history_one(const struct history *history, int64_t iteration, int64_t block);
