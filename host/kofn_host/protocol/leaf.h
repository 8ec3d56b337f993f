/* A leaf's slots on a host, for the simulation; docs/reference/tree.md has the rules. */
#pragma once
#include "answer.h"

enum phase { EMPTY, OPEN, DONE, GONE };

/* A buffer: a part of the rack's sum. */
struct increment {
    uint64_t members[KOFN_PARTS];
    uint32_t weight;
    int32_t count;
    uint8_t values[KOFN_WORDS_MAX * KOFN_WORD_BYTES];
};

struct leaf_slot {
    struct block_id id;
    int32_t phase;
    int32_t confirmed; /* whether the root has answered, so that the slot has the root's format */
    int32_t scale, words, lanes;
    int32_t missing; /* contributions that the root needs, by its latest answer */
    int32_t last; /* 1 + the worker of the open buffer's latest contribution; 0: none, or already asked to repeat it */
    uint64_t taken[KOFN_PARTS], acked[KOFN_PARTS];
    struct header result; /* valid in phase DONE; its values are in the first buffer */
    uint8_t bitmaps[KOFN_RACKS_MAX * KOFN_MEMBERS_BYTES];
    int32_t open; /* which buffer is open; the other one holds the latest increment */
    struct increment buffers[2];
};

struct leaf {
    int32_t rack, workers, k, shift;
    uint32_t generation;
    int64_t count;
    struct leaf_slot slots[];
};

/* The slots of a rack of `workers` workers. An increment leaves when the rack is complete, or when the increment has at least
 * as many contributions as the root still misses, shifted right by `shift`. NULL: no memory. */
struct leaf *leaf_open(int32_t rack, int32_t workers, int64_t count);
void leaf_close(struct leaf *leaf);
/* Handle a packet of a worker; returns whether there is an answer. */
int leaf_below(struct leaf *leaf, const struct header *header, const uint8_t *values, int32_t size,
               struct answer *answer);
/* Handle a packet of the root, whose bitmaps and values are the `body`; returns whether there is an answer. */
int leaf_above(struct leaf *leaf, const struct header *header, const uint8_t *body, int32_t size,
               struct answer *answer);
