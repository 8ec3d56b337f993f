#include "lanes.h"

static void add32(uint32_t *sum, const uint32_t *values, int32_t count) {
    for (int32_t at = 0; at < count; at++)
        sum[at] = __builtin_bswap32(__builtin_bswap32(sum[at]) + __builtin_bswap32(values[at]));
}

static void add16(uint16_t *sum, const uint16_t *values, int32_t count) {
    for (int32_t at = 0; at < count; at++)
        sum[at] = __builtin_bswap16((uint16_t)(__builtin_bswap16(sum[at]) + __builtin_bswap16(values[at])));
}

static void add8(uint8_t *sum, const uint8_t *values, int32_t count) {
    for (int32_t at = 0; at < count; at++)
        sum[at] = (uint8_t)(sum[at] + values[at]);
}

static void add4(uint8_t *sum, const uint8_t *values, int32_t count) {
    for (int32_t at = 0; at < count; at++)
        sum[at] = (uint8_t)(((sum[at] & 0xF0) + (values[at] & 0xF0)) | ((sum[at] + values[at]) & 15));
}

void lanes_add(int32_t lanes, uint8_t *sum, const uint8_t *values, int32_t size) {
    if (lanes == 0)
        add32((uint32_t *)sum, (const uint32_t *)values, size / 4);
    else if (lanes == 1)
        add16((uint16_t *)sum, (const uint16_t *)values, size / 2);
    else if (lanes == 2)
        add8(sum, values, size);
    else
        add4(sum, values, size);
}

int32_t votes_bytes(int32_t size) {
    return size < KOFN_VOTE_WORDS * KOFN_WORD_BYTES ? size : KOFN_VOTE_WORDS * KOFN_WORD_BYTES;
}

int32_t votes_planes(int32_t most) {
    return most ? 32 - __builtin_clz((uint32_t)most) : 0;
}

void votes_add(uint8_t *planes, const uint8_t *values, int32_t size, int32_t count) {
    for (int32_t at = 0; at < size; at++) {
        uint8_t carry = values[at];
        for (int32_t plane = 0; plane < count; plane++) {
            uint8_t *bits = planes + plane * size + at, old = *bits;
            *bits = old ^ carry;
            carry &= old;
        }
    }
}
