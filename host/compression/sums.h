/* What an iteration's sums come to (sums.c). */
#pragma once
#include "ledger.h"

/* Of an iteration; B blocks of `lanes` values. */
struct sums {
    int64_t lanes, elements;
    int64_t most[LANE_CODES]; /* the largest lane of each code; 0: lanes are votes, -1: there are none of this code */
    const int64_t *gap;       /* (B,): for how many iterations a block stands; NULL: means are of contributors */
    double unit;              /* what a total of 1 stands for, in 1 / weight, or in 1 / contributor */
    const uint64_t *factors;  /* (lanes,): of the checksum */
    uint64_t *checksums;      /* (B,) */
    double *closed_s;         /* (B,): when each was taken */
    uint8_t *closed;          /* (B,): whether it was */
};

/* CLOCK_MONOTONIC, in seconds: that of all times of a worker. */
double clock_s(void);

/* Results of blocks that have not come before; `mean`: (elements,). Returns -1, or a place of one that no worker of this
 * job has made: those before it are taken. */
int64_t sums_take(const struct sums *sums, const int64_t *blocks, const struct result *results, int64_t count,
                  float *mean);
/* The largest magnitude of a lane of each result, (count,); 0 where lanes do not have 32 bits, or are not here. */
void sums_largest(const struct result *results, int64_t count, int64_t *largest);
