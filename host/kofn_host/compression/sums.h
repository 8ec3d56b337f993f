/* The averages of an iteration's sums (sums.c). */
#pragma once
#include "ledger.h"

/* The sums of an iteration; B blocks of `lanes` values. */
struct sums {
    int64_t lanes, elements;
    int64_t most[LANE_CODES]; /* the largest lane of each code; 0: lanes are votes, -1: the job lacks this code */
    const int64_t *gap;       /* (B,): the number of iterations that a block represents; NULL: divide by contributors */
    double unit;              /* the value of a total of 1, per weight or per contributor */
    const uint64_t *factors;  /* (lanes,): of the checksum */
    uint64_t *checksums;      /* (B,) */
    double *closed_s;         /* (B,): when the block's result was taken */
    uint8_t *closed;          /* (B,): whether the block's result was taken */
};

/* CLOCK_MONOTONIC in seconds, the clock of all of a worker's times. */
double clock_s(void);

/* Take new results of blocks; `mean`: (elements,). Returns -1, or the place of the first result that no worker of this job could
 * have made; the results before it are taken. */
int64_t sums_take(const struct sums *sums, const int64_t *blocks, const struct result *results, int64_t count,
                  float *mean);
/* Write the largest magnitude of each result's lanes, (count,); 0 if the lanes do not have 32 bits, or if only another worker
 * has the sum. */
void sums_largest(const struct result *results, int64_t count, int64_t *largest);
