/* The arithmetic of host/kernel.py once more, in one pass each: the same integers and the same floats, bit for bit.
 *
 * Blocks are rows of `lanes` values; `shift` (0 to 40) and `factor` have one number for each row. Arrays do not overlap.
 * Right shifts of negative numbers are arithmetic (gcc, clang), as in NumPy. Wrap-around is meant where it can happen:
 * it is written in unsigned numbers.
 */
#include <math.h>
#include <stdint.h>

/* Floats in units of 1 / `unit`. Returns the first that is not finite or above `most` in magnitude, -1: none. */
int64_t kernel_fix(const float *gradient, int64_t size, double unit, float most, int64_t *fixed) {
    const int64_t chunk = 4096;
    for (int64_t begin = 0; begin < size; begin += chunk) {
        int64_t end = begin + chunk < size ? begin + chunk : size;
        int32_t bad = 0;
        for (int64_t i = begin; i < end; i++)
            bad |= !(fabsf(gradient[i]) <= most);
        for (int64_t i = begin; bad && i < end; i++)
            if (!(fabsf(gradient[i]) <= most))
                return i;
        for (int64_t i = begin; i < end; i++)
            fixed[i] = (int64_t)rint((double)gradient[i] * unit);
    }
    return -1;
}

static inline int32_t clipped(int64_t rounded, int64_t limit) {
    rounded = rounded > limit ? limit : rounded;
    return (int32_t)(rounded < -limit ? -limit : rounded);
}

/* Lanes: values in steps of 2**shift, to the nearest, half a step up. */
void kernel_round(const int64_t *values, int64_t rows, int64_t lanes, const int64_t *shift, int64_t limit,
                  int32_t *out) {
    for (int64_t row = 0; row < rows; row++, values += lanes, out += lanes) {
        const int by = (int)shift[row];
        const uint64_t half = (uint64_t)1 << by >> 1;
        for (int64_t i = 0; i < lanes; i++)
            out[i] = clipped((int64_t)((uint64_t)values[i] + half) >> by, limit);
    }
}

/* Mixes an element's number to 32 bits: murmur3's finaliser. */
static inline uint32_t mixed(uint32_t bits) {
    bits ^= bits >> 16;
    bits *= 0x85EBCA6Bu;
    bits ^= bits >> 13;
    bits *= 0xC2B2AE35u;
    return bits ^ bits >> 16;
}

/* Lanes: up or down by chance, so that the mean is the value. */
void kernel_round_by_chance(const int64_t *values, int64_t rows, int64_t lanes, const int64_t *shift, int64_t limit,
                            uint32_t seed, int32_t *out) {
    for (int64_t row = 0; row < rows; row++, values += lanes, out += lanes) {
        const int by = (int)shift[row], down = 40 - by;
        const uint32_t first = (uint32_t)((uint64_t)row * (uint64_t)lanes) + seed;
        for (int64_t i = 0; i < lanes; i++) {
            const uint64_t chance = (uint64_t)mixed(first + (uint32_t)i) << 8 >> down;
            out[i] = clipped((int64_t)((uint64_t)values[i] + chance) >> by, limit);
        }
    }
}

/* What lanes stand for. */
void kernel_spread(const int32_t *in, int64_t rows, int64_t lanes, const int64_t *shift, int64_t *values) {
    for (int64_t row = 0; row < rows; row++, values += lanes, in += lanes) {
        const int by = (int)shift[row];
        for (int64_t i = 0; i < lanes; i++)
            values[i] = (int64_t)((uint64_t)(int64_t)in[i] << by);
    }
}

/* Values times a factor for each row, as floats. */
void kernel_scale(const int64_t *values, int64_t rows, int64_t lanes, const double *factor, float *out) {
    for (int64_t row = 0; row < rows; row++, values += lanes, out += lanes)
        for (int64_t i = 0; i < lanes; i++)
            out[i] = (float)((double)values[i] * factor[row]);
}

/* Of each row's magnitudes: the sum, high and low halves apart so that it cannot overflow, and the largest. */
void kernel_magnitudes(const int64_t *values, int64_t rows, int64_t lanes, uint64_t *high, uint64_t *low,
                       uint64_t *largest) {
    for (int64_t row = 0; row < rows; row++, values += lanes) {
        uint64_t sum_high = 0, sum_low = 0, most = 0;
        for (int64_t i = 0; i < lanes; i++) {
            const uint64_t sign = (uint64_t)(values[i] >> 63), magnitude = ((uint64_t)values[i] ^ sign) - sign;
            sum_high += magnitude >> 32;
            sum_low += magnitude & 0xFFFFFFFFu;
            most = magnitude > most ? magnitude : most;
        }
        high[row] = sum_high, low[row] = sum_low, largest[row] = most;
    }
}

/* Lanes to the wire: the first in the high bits. */
void kernel_pack_32(const int32_t *lanes, int64_t size, uint32_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = __builtin_bswap32((uint32_t)lanes[i]);
}

void kernel_pack_16(const int32_t *lanes, int64_t size, uint16_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = __builtin_bswap16((uint16_t)lanes[i]);
}

void kernel_pack_8(const int32_t *lanes, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = (uint8_t)lanes[i];
}

void kernel_pack_4(const int32_t *lanes, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < size / 2; i++)
        out[i] = (uint8_t)((uint32_t)lanes[2 * i] << 4 | ((uint32_t)lanes[2 * i + 1] & 15));
}

/* And back. */
void kernel_unpack_32(const uint32_t *in, int64_t size, int is_signed, int32_t *lanes) {
    (void)is_signed; /* 32 bits are all there is */
    for (int64_t i = 0; i < size; i++)
        lanes[i] = (int32_t)__builtin_bswap32(in[i]);
}

void kernel_unpack_16(const uint16_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 15 : 0;
    for (int64_t i = 0; i < size; i++)
        lanes[i] = ((int32_t)__builtin_bswap16(in[i]) ^ sign) - sign;
}

void kernel_unpack_8(const uint8_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 7 : 0;
    for (int64_t i = 0; i < size; i++)
        lanes[i] = ((int32_t)in[i] ^ sign) - sign;
}

void kernel_unpack_4(const uint8_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 3 : 0;
    for (int64_t i = 0; i < size / 2; i++) {
        lanes[2 * i] = ((int32_t)(in[i] >> 4) ^ sign) - sign;
        lanes[2 * i + 1] = ((int32_t)(in[i] & 15) ^ sign) - sign;
    }
}
