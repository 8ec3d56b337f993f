/* The pending values of a block, kept in 64 bits or fewer (compress.residual).
 *
 * bfloat16 keeps eight significant bits per value. int8 keeps all values of a block in steps of 2**shift, with the smallest shift
 * at which the largest value fits. Rounding is idempotent.
 */
#pragma once
#include <stdint.h>
#include <string.h>

enum residual { RESIDUAL_EXACT, RESIDUAL_BFLOAT16, RESIDUAL_INT8 };

enum { INT8_MOST = 127 };

static inline uint16_t to_bfloat16(int64_t value) {
    const float near = (float)value;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline int64_t from_bfloat16(uint16_t kept) {
    const uint32_t bits = (uint32_t)kept << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (int64_t)value;
}

/* The smallest shift with which every value is at most INT8_MOST steps. */
static inline int shift_for(const int64_t *values, int64_t lanes) {
    int64_t most = 0;
    int shift = 0;
    for (int64_t i = 0; i < lanes; i++) {
        const int64_t size = values[i] < 0 ? -values[i] : values[i];
        most = size > most ? size : most;
    }
    while (most > (int64_t)INT8_MOST << shift)
        shift++;
    return shift;
}

static inline int64_t nearest(int64_t value, int shift) {
    return shift ? (value + ((int64_t)1 << (shift - 1))) >> shift : value;
}

/* Store a block's values in its row `kept`, (lanes,), rounded if the row has fewer bits. */
static inline void keep(enum residual kind, const int64_t *values, int64_t lanes, void *kept, int64_t *shift) {
    if (kind == RESIDUAL_EXACT) {
        for (int64_t i = 0; i < lanes; i++)
            ((int64_t *)kept)[i] = values[i];
    } else if (kind == RESIDUAL_BFLOAT16) {
        for (int64_t i = 0; i < lanes; i++)
            ((uint16_t *)kept)[i] = to_bfloat16(values[i]);
    } else {
        const int by = shift_for(values, lanes);
        *shift = by;
        for (int64_t i = 0; i < lanes; i++)
            ((int8_t *)kept)[i] = (int8_t)nearest(values[i], by);
    }
}

/* The values of a row: the row itself if it is exact, else `room`, which gets them. */
static inline const int64_t *kept_values(enum residual kind, const void *kept, int64_t shift, int64_t lanes,
                                         int64_t *room) {
    if (kind == RESIDUAL_EXACT)
        return kept;
    for (int64_t i = 0; i < lanes; i++)
        room[i] = kind == RESIDUAL_BFLOAT16 ? from_bfloat16(((const uint16_t *)kept)[i])
                                            : (int64_t)((uint64_t)((const int8_t *)kept)[i] << shift);
    return room;
}

/* Round values as keep() would. Returns the sum of the squared changes. */
static inline double round_as_kept(enum residual kind, int64_t *values, int64_t lanes) {
    const int shift = kind == RESIDUAL_INT8 ? shift_for(values, lanes) : 0;
    double changed = 0;
    for (int64_t i = 0; i < lanes; i++) {
        const int64_t before = values[i];
        values[i] = kind == RESIDUAL_BFLOAT16 ? from_bfloat16(to_bfloat16(before))
                                              : (int64_t)((uint64_t)nearest(before, shift) << shift);
        changed += (double)(before - values[i]) * (double)(before - values[i]);
    }
    return changed;
}
