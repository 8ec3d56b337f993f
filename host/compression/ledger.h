/* A worker's ledger (ledger.c): where its arrays are, and what changes them. */
#pragma once
#include "core.h"
#include "residual.h"

enum { FRACTION_BITS = 40 };

struct journal;
struct record;
struct sent;

/* Where the arrays are; B blocks of `lanes` values, rows of `room` bytes as on the wire. */
struct ledger {
    int64_t blocks, lanes, room;
    int64_t most[LANE_CODES]; /* the largest lane of each code; 0: lanes are votes */
    const uint64_t *factors; /* (lanes,) */
    struct journal *journal;
    struct record *records; /* (B,) */
    struct sent *sent;      /* (PARTS, GENERATIONS, B) */
    void *pending;          /* (B, lanes), of `residual` */
    int64_t *shifts;        /* (B,), of RESIDUAL_INT8 */
    uint8_t *packed;        /* (PARTS, GENERATIONS, B, room): rows, of which `sent` says what is in them */
    int64_t *values;        /* (lanes,), for those of a block that is not kept exactly */
    int64_t residual;       /* enum residual */
    const struct core *core; /* knows the latest iteration that all workers have given to; NULL: it is not known */
    double lost;            /* the sum of squares of what was lost so that residuals could be kept in fewer bits */
    int64_t busy;           /* somebody changes it: one thread at a time does, any other ends the process */
};

/* As it is entered, block by block. */
struct gradient {
    const float *values;
    int64_t size, key;
    int64_t now, open_share, closed_share; /* of it is left in a block that is open in iteration `now`, or is closed */
    int64_t begun; /* the iteration that parts are on their way to */
};

/* How what waits fades when a block closes without it. */
struct fading {
    int64_t share; /* is left, in 1 / WEIGHT_UNIT, up to this age */
    int64_t limit;
    int64_t feedback; /* whether the encoding error of what is aggregated is kept */
};

/* Enters blocks of a gradient, if there is one; of those that were not sent yet in this iteration encodes what waits, and
 * notes it. `scale`: every block's. */
void ledger_send(const struct ledger *ledger, const struct gradient *gradient, int64_t iteration, int part, int lanes,
                 const int64_t *blocks, int64_t count, const int64_t *scale);
/* What encoding has left over of blocks that were sent as part 0 in an iteration, (count, lanes): what waits and no part
 * brings. */
void ledger_left_over(const struct ledger *ledger, int64_t iteration, const int64_t *blocks, int64_t count,
                      int64_t *values);
/* What is pending of blocks, (count, lanes). */
void ledger_pending(const struct ledger *ledger, const int64_t *blocks, int64_t count, int64_t *values);
/* As what blocks were sent last. Returns -1, or a place in `blocks` of one that never was. */
int64_t ledger_noted(const struct ledger *ledger, int part, const int64_t *blocks, int64_t count, struct packed *found);
/* Results of blocks are known, with these of our parts (bit p: part p) in them; what is known already, and blocks that
 * the ledger does not have, change nothing. `decoded`: what a block's parts stand for together (count, lanes), or null.
 * Returns -1, or a place in `blocks` of one that was not sent: then nothing has changed. */
int64_t ledger_settle(const struct ledger *ledger, int64_t iteration, const int64_t *blocks, const int64_t *parts,
                      int64_t count, struct fading fading, const int64_t *decoded);
