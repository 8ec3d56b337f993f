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
static void pack_32(const int32_t *lanes, int64_t size, uint32_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = __builtin_bswap32((uint32_t)lanes[i]);
}

static void pack_16(const int32_t *lanes, int64_t size, uint16_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = __builtin_bswap16((uint16_t)lanes[i]);
}

static void pack_8(const int32_t *lanes, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = (uint8_t)lanes[i];
}

static void pack_4(const int32_t *lanes, int64_t size, uint8_t *out) {
    for (int64_t i = 0; i < size / 2; i++)
        out[i] = (uint8_t)((uint32_t)lanes[2 * i] << 4 | ((uint32_t)lanes[2 * i + 1] & 15));
}

/* And back. */
static void unpack_32(const uint32_t *in, int64_t size, int is_signed, int32_t *lanes) {
    (void)is_signed; /* 32 bits are all there is */
    for (int64_t i = 0; i < size; i++)
        lanes[i] = (int32_t)__builtin_bswap32(in[i]);
}

static void unpack_16(const uint16_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 15 : 0;
    for (int64_t i = 0; i < size; i++)
        lanes[i] = ((int32_t)__builtin_bswap16(in[i]) ^ sign) - sign;
}

static void unpack_8(const uint8_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 7 : 0;
    for (int64_t i = 0; i < size; i++)
        lanes[i] = ((int32_t)in[i] ^ sign) - sign;
}

static void unpack_4(const uint8_t *in, int64_t size, int is_signed, int32_t *lanes) {
    const int32_t sign = is_signed ? 1 << 3 : 0;
    for (int64_t i = 0; i < size / 2; i++) {
        lanes[2 * i] = ((int32_t)(in[i] >> 4) ^ sign) - sign;
        lanes[2 * i + 1] = ((int32_t)(in[i] & 15) ^ sign) - sign;
    }
}

void kernel_pack(const int32_t *lanes, int64_t size, int width, void *out) {
    switch (width) {
    case 32: pack_32(lanes, size, out); break;
    case 16: pack_16(lanes, size, out); break;
    case 8: pack_8(lanes, size, out); break;
    default: pack_4(lanes, size, out);
    }
}

void kernel_unpack(const void *in, int64_t size, int width, int is_signed, int32_t *lanes) {
    switch (width) {
    case 32: unpack_32(in, size, is_signed, lanes); break;
    case 16: unpack_16(in, size, is_signed, lanes); break;
    case 8: unpack_8(in, size, is_signed, lanes); break;
    default: unpack_4(in, size, is_signed, lanes);
    }
}

enum { CHUNK_LANES = 1024 };

/* Rows from the first on that have the same shift, at most a chunk of them: they are done as one. */
static int64_t alike(const int64_t *shift, int64_t rows, int64_t lanes) {
    int64_t most = CHUNK_LANES / lanes, found = 1;
    while (found < rows && found < most && shift[found] == shift[0])
        found++;
    return found;
}

/* kernel_round (seed < 0) or kernel_round_by_chance, and packed while the lanes are in the cache: `keep`, or where that
 * is null `buffer`, with room for a row and for CHUNK_LANES lanes. */
void kernel_encode(const int64_t *values, int64_t rows, int64_t lanes, const int64_t *shift, int64_t limit,
                   int64_t seed, int width, int32_t *keep, int32_t *buffer, uint8_t *packed) {
    for (int64_t row = 0, run; row < rows; row += run) {
        run = alike(shift + row, rows - row, lanes);
        const int64_t at = row * lanes, size = run * lanes;
        int32_t *out = keep ? keep + at : buffer;
        if (seed < 0)
            kernel_round(values + at, 1, size, shift + row, limit, out);
        else
            kernel_round_by_chance(values + at, 1, size, shift + row, limit, (uint32_t)(seed + at), out);
        kernel_pack(out, size, width, packed + at * width / 8);
    }
}

/* Unpacked and kernel_spread; `buffer` as above. */
void kernel_decode(const uint8_t *packed, int64_t rows, int64_t lanes, const int64_t *shift, int width, int is_signed,
                   int32_t *buffer, int64_t *values) {
    for (int64_t row = 0, run; row < rows; row += run) {
        run = alike(shift + row, rows - row, lanes);
        const int64_t at = row * lanes, size = run * lanes;
        kernel_unpack(packed + at * width / 8, size, width, is_signed, buffer);
        kernel_spread(buffer, 1, size, shift + row, values + at);
    }
}
