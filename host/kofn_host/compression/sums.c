/* The averages of an iteration's sums (host/kofn_host/compression/aggregate.py). One pass over a block's lanes computes the mean
 * and the checksum of the total (ledger.c). Intended wrap-around uses unsigned numbers. */
#include "sums.h"

#include <string.h>
#include <time.h>

#include "values.h"

enum { CHUNK_LANES = 1024 };

double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Decode lanes to totals minus `base`, and write them times `factor` to `mean`; returns the totals' checksum. */
static uint64_t spread(const int32_t *lanes, int64_t size, int shift, uint64_t base, double factor,
                       const uint64_t *factors, float *mean) {
    uint64_t sum = 0;
#pragma GCC ivdep
    for (int64_t i = 0; i < size; i++) {
        const uint64_t total = ((uint64_t)(int64_t)lanes[i] << shift) - base;
        mean[i] = (float)((double)(int64_t)total * factor);
        sum += factors[i] * total;
    }
    return sum;
}

static int64_t addends(const struct result *result) {
    int64_t count = 0;
    for (int word = 0; word < MEMBER_WORDS; word++)
        count += __builtin_popcountll(result->members[word]);
    return count;
}

/* Take a result. A total of votes is two steps per positive vote, minus one step per vote. */
static void take(const struct sums *sums, int64_t block, const struct result *result, float *mean) {
    const int width = (int)LANE_WIDTHS[result->lanes], votes = !sums->most[result->lanes];
    const int64_t plane = sums->lanes / 8; /* octets */
    const int step = FRACTION_BITS - result->scale;
    const uint64_t base = votes ? (uint64_t)addends(result) << step : 0;
    const double factor = sums->gap ? (double)sums->gap[block] / (double)result->weight * sums->unit
                                    : sums->unit / (double)result->count;
    const int64_t first = block * sums->lanes, held = sums->elements - first;
    int32_t lanes[CHUNK_LANES];
    float means[CHUNK_LANES];
    uint64_t sum = 0;
    for (int64_t at = 0, size; at < sums->lanes; at += size) {
        size = sums->lanes - at < CHUNK_LANES ? sums->lanes - at : CHUNK_LANES;
        float *out = at + size <= held ? mean + first + at : means;
        if (votes)
            unpack_counts(result->values + at / 8, size, (int)(result->size / plane), plane, lanes);
        else
            unpack(result->values + at * width / 8, size, width, 1, lanes);
        sum += spread(lanes, size, step + votes, base, factor, sums->factors + at, out);
        if (out == means && at < held)
            memcpy(mean + first + at, means, (size_t)(held - at) * sizeof *means);
    }
    sums->checksums[block] = sum;
    sums->closed_s[block] = clock_s();
    __atomic_store_n(&sums->closed[block], 1, __ATOMIC_RELEASE); /* other threads wait for it */
}

static int fits(const struct sums *sums, const struct result *result) {
    if (result->lanes < 0 || result->lanes >= LANE_CODES || sums->most[result->lanes] < 0)
        return 0;
    const int64_t size = sums->lanes * LANE_WIDTHS[result->lanes] / 8, planes = result->size / size;
    return result->scale >= 0 && result->scale <= FRACTION_BITS && result->size == planes * size &&
           (sums->most[result->lanes] ? planes == 1 : planes >= 1 && planes <= PLANES_MOST);
}

int64_t sums_take(const struct sums *sums, const int64_t *blocks, const struct result *results, int64_t count,
                  float *mean) {
    for (int64_t at = 0; at < count; at++) {
        if (!results[at].size)
            continue; /* another worker has the sum */
        if (!fits(sums, results + at))
            return at;
        take(sums, blocks[at], results + at, mean);
    }
    return -1;
}

void sums_largest(const struct result *results, int64_t count, int64_t *largest) {
    int32_t lanes[CHUNK_LANES];
    for (int64_t place = 0; place < count; place++) {
        const struct result *result = results + place;
        const int64_t all = LANE_WIDTHS[result->lanes] == 32 ? result->size / 4 : 0;
        int32_t least = 0, most = 0;
        for (int64_t at = 0, size; at < all; at += size) {
            size = all - at < CHUNK_LANES ? all - at : CHUNK_LANES;
            unpack(result->values + 4 * at, size, 32, 1, lanes);
            for (int64_t i = 0; i < size; i++) {
                least = lanes[i] < least ? lanes[i] : least;
                most = lanes[i] > most ? lanes[i] : most;
            }
        }
        largest[place] = -(int64_t)least > most ? -(int64_t)least : most;
    }
}
