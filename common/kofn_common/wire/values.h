/* A gradient's values in fixed point, and lanes of 32, 16, 8, 4 bits or 1 bit as on the wire: big-endian, the first lane in the
 * high bits. Sizes are numbers of values or lanes. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

/* A float in units of 1 / `unit`. */
static inline int64_t fixed_of(float value, double unit) {
    return (int64_t)rint((double)value * unit);
}

static inline int32_t clipped(int64_t rounded, int64_t limit) {
    rounded = rounded > limit ? limit : rounded;
    return (int32_t)(rounded < -limit ? -limit : rounded);
}

/* The step of 2**shift that is nearest to a value, halves up; `half` is half a step. */
static inline int32_t step_of(int64_t value, uint64_t half, int shift, int64_t limit) {
    return clipped((int64_t)((uint64_t)value + half) >> shift, limit);
}

/* Round values to steps of 2**shift. */
static inline void round_all(const int64_t *values, int64_t size, int shift, int64_t limit, int32_t *lanes) {
    const uint64_t half = (uint64_t)1 << shift >> 1;
    for (int64_t i = 0; i < size; i++)
        lanes[i] = step_of(values[i], half, shift, limit);
}

/* The sum of the magnitudes, in its high and low halves so that it cannot overflow, and the largest magnitude. */
static inline void measure(const int64_t *values, int64_t size, uint64_t *high, uint64_t *low, uint64_t *largest) {
    uint64_t sum_high = 0, sum_low = 0, most = 0;
    for (int64_t i = 0; i < size; i++) {
        const uint64_t sign = (uint64_t)(values[i] >> 63), magnitude = ((uint64_t)values[i] ^ sign) - sign;
        sum_high += magnitude >> 32;
        sum_low += magnitude & 0xFFFFFFFFu;
        most = magnitude > most ? magnitude : most;
    }
    *high = sum_high, *low = sum_low, *largest = most;
}

/* Votes: 1 for values >= 0, else 0. */
static inline void vote_all(const int64_t *values, int64_t size, int32_t *lanes) {
    for (int64_t i = 0; i < size; i++)
        lanes[i] = values[i] >= 0;
}

/* Pack lanes for the wire: the first lane in the high bits. */
static inline void pack_32(const int32_t *lanes, int64_t size, uint32_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = __builtin_bswap32((uint32_t)lanes[i]);
}

static inline void pack_16(const int32_t *lanes, int64_t size, uint16_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = __builtin_bswap16((uint16_t)lanes[i]);
}

static inline void pack_8(const int32_t *lanes, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = (uint8_t)lanes[i];
}

static inline void pack_4(const int32_t *lanes, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < size / 2; i++)
        out[i] = (uint8_t)((uint32_t)lanes[2 * i] << 4 | ((uint32_t)lanes[2 * i + 1] & 15));
}

static inline void pack_1(const int32_t *lanes, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < size / 8; i++, lanes += 8) {
        uint32_t bits = 0;
        for (int bit = 0; bit < 8; bit++)
            bits = bits << 1 | ((uint32_t)lanes[bit] & 1);
        out[i] = (uint8_t)bits;
    }
}

/* round_all(), then pack_32(). */
static inline void pack_steps_32(const int64_t *values, int64_t size, int shift, int64_t limit, uint32_t *out) {
    const uint64_t half = (uint64_t)1 << shift >> 1;
    for (int64_t i = 0; i < size; i++)
        out[i] = __builtin_bswap32((uint32_t)step_of(values[i], half, shift, limit));
}

/* vote_all(), then pack_1(). */
static inline void pack_votes(const int64_t *values, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < size / 8; i++, values += 8) {
        uint32_t against = 0;
        for (int bit = 0; bit < 8; bit++)
            against = against << 1 | (uint32_t)((uint64_t)values[bit] >> 63);
        out[i] = (uint8_t)~against;
    }
}

/* Unpack lanes from the wire. */
static inline void unpack_32(const uint32_t *in, int64_t size, int is_signed, int32_t *lanes) {
    (void)is_signed; /* 32 bits need no sign extension */
    for (int64_t i = 0; i < size; i++)
        lanes[i] = (int32_t)__builtin_bswap32(in[i]);
}

static inline void unpack_16(const uint16_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 15 : 0;
    for (int64_t i = 0; i < size; i++)
        lanes[i] = ((int32_t)__builtin_bswap16(in[i]) ^ sign) - sign;
}

static inline void unpack_8(const uint8_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 7 : 0;
    for (int64_t i = 0; i < size; i++)
        lanes[i] = ((int32_t)in[i] ^ sign) - sign;
}

static inline void unpack_4(const uint8_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 3 : 0;
    for (int64_t i = 0; i < size / 2; i++) {
        lanes[2 * i] = ((int32_t)(in[i] >> 4) ^ sign) - sign;
        lanes[2 * i + 1] = ((int32_t)(in[i] & 15) ^ sign) - sign;
    }
}

/* Spread the bits of an octet over eight octets of 0 or 1; the octet of the high bit is first in memory. */
static inline uint64_t bits_apart(uint8_t octet) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t each = 0x0102040810204080u;
#else
    const uint64_t each = 0x8040201008040201u;
#endif
    return (((octet * 0x0101010101010101u & each) + 0x7F7F7F7F7F7F7F7Fu) >> 7) & 0x0101010101010101u;
}

/* Unpack counts of votes from `planes` at a distance of `apart` octets; plane p has bit p of all counts. */
static inline void unpack_counts(const uint8_t *in, int64_t size, int planes, int64_t apart, int32_t *lanes) {
    for (int64_t i = 0; i < size / 8; i++) {
        uint64_t counts = 0;
        for (int plane = 0; plane < planes; plane++)
            counts += bits_apart(in[plane * apart + i]) << plane;
        uint8_t octets[8];
        memcpy(octets, &counts, sizeof octets);
        for (int at = 0; at < 8; at++)
            lanes[8 * i + at] = octets[at];
    }
}

static inline void unpack_1(const uint8_t *in, int64_t size, int is_signed, int32_t *lanes) {
    unpack_counts(in, size, 1, 0, lanes);
    for (int64_t i = 0; is_signed && i < size; i++)
        lanes[i] = -lanes[i];
}

static inline void pack(const int32_t *lanes, int64_t size, int width, void *out) {
    switch (width) {
    case 32: pack_32(lanes, size, out); break;
    case 16: pack_16(lanes, size, out); break;
    case 8: pack_8(lanes, size, out); break;
    case 4: pack_4(lanes, size, out); break;
    default: pack_1(lanes, size, out);
    }
}

static inline void unpack(const void *in, int64_t size, int width, int is_signed, int32_t *lanes) {
    switch (width) {
    case 32: unpack_32(in, size, is_signed, lanes); break;
    case 16: unpack_16(in, size, is_signed, lanes); break;
    case 8: unpack_8(in, size, is_signed, lanes); break;
    case 4: unpack_4(in, size, is_signed, lanes); break;
    default: unpack_1(in, size, is_signed, lanes);
    }
}
