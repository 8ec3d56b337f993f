/* An iteration's work that needs no Python: entering, encoding and recording blocks that may leave, a few at a time; settling and
 * averaging closed blocks.
 *
 * A reduction works with codecs that native code knows, and with part 0. Only one thread at a time may use the reduction, its
 * ledger and its sums.
 */
#pragma once
#include "sums.h"

enum { REDUCED_AT_ONCE = 64 };

struct reduction {
    const struct ledger *ledger;
    const struct sums *sums;
    float *mean; /* (elements,) */
    int64_t iteration;
    int64_t place, lanes; /* the code of the lanes to encode in */
    struct fading fading;
    struct gradient gradient; /* no `values`: the gradient is in the ledger already */
    const int64_t *scale;     /* the scales of all blocks */
    int64_t *left;            /* blocks that are still to be encoded, ascending: `first` to `end` */
    int64_t first, end;
    const int64_t *missing, *level; /* by block: number of missing elements, and level; NULL: all blocks are complete */
    int64_t window;                 /* a block leaves once the block `window` places before it has closed */
    const struct packed *last;      /* the summary block, sent after all others; NULL: none */
    int64_t lookahead;              /* the most contributions that wait to leave */
    int64_t sample_stride;          /* the error of every `sample_stride`-th block is measured */
    int64_t *scratch;               /* (lanes,) */

    int64_t encoded, looked_at;
    double error; /* sum of squares, of the sampled blocks */
    double encode_s, send_s, settle_s, average_s;
};

/* Encode the next blocks that may leave, at most `most` and at most REDUCED_AT_ONCE; returns their number. */
int64_t reduction_next(struct reduction *reduction, struct packed *ready, int64_t most);
/* Settle and average closed blocks, at most REDUCED_AT_ONCE. Returns 0 after an error; Python reports the error when it settles
 * and averages the same blocks again. */
int reduction_closed(struct reduction *reduction, const int64_t *blocks, const struct result *results, int64_t count);
