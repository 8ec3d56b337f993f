/* What a worker does with an iteration while nobody has to be asked: what may leave is entered, encoded and noted, a few
 * blocks at a time; what has closed is settled and averaged.
 *
 * For codecs that native code knows, and for part 0. Only one thread at a time may use it, its ledger and its sums.
 */
#pragma once
#include "sums.h"

enum { REDUCED_AT_ONCE = 64 };

struct reduction {
    const struct ledger *ledger;
    const struct sums *sums;
    float *mean; /* (elements,) */
    int64_t iteration;
    int64_t rank, lanes; /* the code of those to encode in */
    struct fading fading;
    struct gradient gradient; /* without `values`: it is in the ledger already */
    const int64_t *scale;     /* every block's */
    int64_t *left;            /* blocks that are still to be encoded, ascending: `first` to `end` */
    int64_t first, end;
    const int64_t *missing, *level; /* by block: elements that are not there yet, and what leaves first; NULL: all is there */
    int64_t window;                 /* a block leaves once the one so many before it has closed */
    const struct packed *last;      /* goes after all others; NULL: nothing does */
    int64_t lookahead;              /* so many contributions may wait to leave */
    int64_t sample_stride;          /* the error of every so-many-th block is looked at */
    int64_t *scratch;               /* (lanes,) */

    int64_t encoded, looked_at;
    double error; /* sum of squares, of the blocks looked at */
    double encode_s, send_s, settle_s, average_s;
};

/* The next blocks that may leave, at most `most` and REDUCED_AT_ONCE: how many. */
int64_t reduction_next(struct reduction *reduction, struct packed *ready, int64_t most);
/* Blocks have closed, at most REDUCED_AT_ONCE. Whether there was nothing wrong with them; else whoever settles and averages
 * them once more learns what. */
int reduction_closed(struct reduction *reduction, const int64_t *blocks, const struct result *results, int64_t count);
