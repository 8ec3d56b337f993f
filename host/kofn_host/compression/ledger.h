/* A worker's ledger (ledger.c): the addresses of its arrays, and its functions. */
#pragma once
#include "core.h"
#include "residual.h"

enum { FRACTION_BITS = 40 };

struct journal;
struct record;
struct sent;

/* The addresses of the arrays; B blocks of `lanes` values, rows of `room` bytes as on the wire. */
struct ledger {
    int64_t blocks, lanes, room;
    int64_t most[LANE_CODES]; /* the largest lane of each code; 0: lanes are votes */
    const uint64_t *factors; /* (lanes,) */
    struct journal *journal;
    struct record *records; /* (B,) */
    struct sent *sent;      /* (PARTS, GENERATIONS, B) */
    void *pending;          /* (B, lanes), in the format that `residual` names */
    int64_t *shifts;        /* (B,), used with RESIDUAL_INT8 only */
    uint8_t *packed;        /* (PARTS, GENERATIONS, B, room): rows, described by `sent` */
    int64_t *values;        /* (lanes,), for a block's values that are not in its row */
    int64_t residual;       /* enum residual */
    int64_t in_place;       /* whether values change in their place: no later process opens the ledger */
    const struct core *core; /* knows the latest iteration to which all workers have contributed; NULL: not known */
    double lost;            /* sum of the squared rounding errors of residuals kept in fewer bits */
    int64_t busy;           /* a thread is changing the ledger; a second thread aborts the process */
};

/* A gradient that is entered block by block. */
struct gradient {
    const float *values;
    int64_t size, key;
    int64_t now, open_share, closed_share; /* the share that enters a block that is open, or closed, in iteration `now` */
    int64_t begun; /* the iteration of the parts that are in flight */
};

/* The loss of waiting gradients when a block closes without them. */
struct fading {
    int64_t share; /* the remaining share, in 1 / WEIGHT_UNIT, up to the age `limit` */
    int64_t limit;
    int64_t feedback; /* whether the encoding error of aggregated values is kept */
};

/* Enter all blocks of a gradient, if given; then measure() the pending values of each block, (blocks,). */
void ledger_look(const struct ledger *ledger, const struct gradient *gradient, uint64_t *high, uint64_t *low,
                 uint64_t *largest);
/* Enter blocks of a gradient, if given; then encode and record the blocks that were not sent yet in this iteration. `scale`:
 * the scales of all blocks of the ledger. */
void ledger_send(const struct ledger *ledger, const struct gradient *gradient, int64_t iteration, int part, int lanes,
                 const int64_t *blocks, int64_t count, const int64_t *scale);
/* The encoding error of blocks that were sent as part 0 in an iteration, (count, lanes): pending values that no part
 * contains. */
void ledger_left_over(const struct ledger *ledger, int64_t iteration, const int64_t *blocks, int64_t count,
                      int64_t *values);
/* The pending values of blocks, (count, lanes). */
void ledger_pending(const struct ledger *ledger, const int64_t *blocks, int64_t count, int64_t *values);
/* The latest contributions to blocks. Returns -1, or the place in `blocks` of the first block without a contribution. */
int64_t ledger_noted(const struct ledger *ledger, int part, const int64_t *blocks, int64_t count, struct packed *found);
/* Settle results of blocks with these parts of this worker (bit p: part p). Known results, and blocks that the ledger does not
 * have, change nothing. `decoded`: the sum of each block's parts (count, lanes), or null. Returns -1, or the place in `blocks`
 * of the first block with a part that was not sent; then nothing has changed. */
int64_t ledger_settle(const struct ledger *ledger, int64_t iteration, const int64_t *blocks, const int64_t *parts,
                      int64_t count, struct fading fading, const int64_t *decoded);
