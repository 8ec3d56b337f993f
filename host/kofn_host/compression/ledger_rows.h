/* A ledger's rows for each block, as in a mapped file (host/kofn_host/compression/ledger_storage.py). */
#pragma once
#include <stdint.h>

/* The record of a block. */
struct record {
    int64_t entered; /* the newest gradient: its iteration, and in the lowest BATCH_BITS its number in the iteration */
    int64_t settled; /* the latest iteration with a known result, and in the lowest PARTS bits this worker's parts in it */
    int64_t late;    /* iteration of the first sum that closed without the gradients that no part contains now; 0: none */
    int64_t entered_weight, aggregated_weight, discarded_weight;
    uint64_t gradients, aggregated, discarded; /* checksums */
};

/* A contribution to a block as one part. */
struct sent {
    int64_t iteration; /* 0: there is no contribution, or the contribution is being written */
    int64_t weight;
    int64_t late; /* iteration of the first sum that closed without these gradients; 0: none */
    int32_t scale;
    int16_t lanes, row; /* the row of the block and part that has the values as on the wire */
};

/* The next change of a block. */
struct journal {
    int64_t committed; /* 1 + the block; 0: nothing */
    int64_t moved;     /* whether the block's values change */
    int64_t withdrawn; /* 1 + the place of a withdrawn contribution; 0: none */
    struct record record;
    int64_t values[];
};
