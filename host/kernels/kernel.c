/* The arithmetic of host/kernels/kernel.py once more, in one trial each: the same integers and the same floats, bit for bit.
 *
 * Blocks are rows of `lanes` values; `shift` (0 to 41) and `factor` have one number for each row. Arrays do not overlap.
 * Right shifts of negative numbers are arithmetic (gcc, clang), as in NumPy. Wrap-around is meant where it can happen:
 * it is written in unsigned numbers.
 */
#include <math.h>
#include <stdint.h>

/* The first float that is not finite or above `most` in magnitude, -1: none. */
int64_t kernel_first_bad(const float *gradient, int64_t size, float most) {
    const int64_t chunk = 4096;
    for (int64_t begin = 0; begin < size; begin += chunk) {
        int64_t end = begin + chunk < size ? begin + chunk : size;
        int32_t bad = 0;
        for (int64_t i = begin; i < end; i++)
            bad |= !(fabsf(gradient[i]) <= most);
        for (int64_t i = begin; bad && i < end; i++)
            if (!(fabsf(gradient[i]) <= most))
                return i;
    }
    return -1;
}

static inline int64_t fixed_of(float value, double unit) {
    return (int64_t)rint((double)value * unit);
}

/* Floats in units of 1 / `unit`. */
void kernel_fix(const float *gradient, int64_t size, double unit, int64_t *fixed) {
    for (int64_t i = 0; i < size; i++)
        fixed[i] = fixed_of(gradient[i], unit);
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

enum { CHUNK_LANES = 1024, CHANCE_BITS = 16, IN_A_DRAW = 64 / CHANCE_BITS };

/* Mixes a number to 64 bits: murmur3's finaliser. */
static inline uint64_t mixed(uint64_t bits) {
    bits ^= bits >> 33;
    bits *= 0xFF51AFD7ED558CCDu;
    bits ^= bits >> 33;
    bits *= 0xC4CEB9FE1A85EC53u;
    return bits ^ bits >> 33;
}

/* Lanes of a row whose first is element `first`, up or down by chance, so that the mean is the value to 2**-16 of a step:
 * a draw for each four elements, a chunk's at a time. */
static void round_by_chance(const int64_t *values, int64_t first, int64_t lanes, int by, int64_t limit, uint32_t seed,
                            int32_t *out) {
    union {
        uint64_t draws[CHUNK_LANES / IN_A_DRAW + 1];
        uint16_t chances[CHUNK_LANES + IN_A_DRAW];
    } of;
    for (int64_t begin = 0; begin < lanes; begin += CHUNK_LANES) {
        const int64_t size = lanes - begin < CHUNK_LANES ? lanes - begin : CHUNK_LANES;
        const uint64_t draw = (uint64_t)(first + begin) / IN_A_DRAW + ((uint64_t)seed << 32);
        const int64_t skipped = (first + begin) % IN_A_DRAW;
        for (int64_t i = 0; i * IN_A_DRAW < skipped + size; i++)
            of.draws[i] = mixed(draw + (uint64_t)i) | 0x0001000100010001u;
        const uint16_t *chances = of.chances + skipped;
        for (int64_t i = 0; i < size; i++) {
            const uint64_t chance = (uint64_t)chances[i] << by >> CHANCE_BITS;
            out[begin + i] = clipped((int64_t)((uint64_t)values[begin + i] + chance) >> by, limit);
        }
    }
}

void kernel_round_by_chance(const int64_t *values, int64_t rows, int64_t lanes, const int64_t *shift, int64_t limit,
                            uint32_t seed, int32_t *out) {
    for (int64_t row = 0; row < rows; row++)
        round_by_chance(values + row * lanes, row * lanes, lanes, (int)shift[row], limit, seed, out + row * lanes);
}

/* 1 for 0 and more. */
void kernel_votes(const int64_t *values, int64_t size, int32_t *out) {
    for (int64_t i = 0; i < size; i++)
        out[i] = values[i] >= 0;
}

/* What lanes stand for, less `base`: of votes that is what all of them come to if none is for. */
void kernel_spread(const int32_t *in, int64_t rows, int64_t lanes, const int64_t *shift, const int64_t *base,
                   int64_t *values) {
    for (int64_t row = 0; row < rows; row++, values += lanes, in += lanes) {
        const int by = (int)shift[row];
        const uint64_t less = (uint64_t)base[row];
        for (int64_t i = 0; i < lanes; i++)
            values[i] = (int64_t)(((uint64_t)(int64_t)in[i] << by) - less);
    }
}

/* Of the chosen rows: what they have of the floats, fixed as above, is added to `pending`, and written, added to the other
 * copy, to copy `valid` of `gradients`, which has two one after the other. */
void kernel_enter(const float *gradient, int64_t size, double unit, int64_t rows, int64_t lanes, const int64_t *chosen,
                  int64_t count, const int64_t *valid, int64_t *gradients, int64_t *pending) {
    for (int64_t at = 0; at < count; at++) {
        const int64_t first = chosen[at] * lanes, copy = rows * lanes;
        const int64_t rest = size - first, held = rest < 0 ? 0 : rest < lanes ? rest : lanes;
        const float *restrict floats = gradient + first;
        const int64_t *restrict before = gradients + (1 - valid[at]) * copy + first;
        int64_t *restrict after = gradients + valid[at] * copy + first, *restrict left = pending + first;
        for (int64_t i = 0; i < held; i++) {
            const uint64_t value = (uint64_t)fixed_of(floats[i], unit);
            after[i] = (int64_t)((uint64_t)before[i] + value);
            left[i] = (int64_t)((uint64_t)left[i] + value);
        }
        for (int64_t i = held; i < lanes; i++)
            after[i] = before[i];
    }
}

/* Of the chosen rows: what their lanes, or votes of one each, stand for (`shift` by place among the chosen) is taken from
 * `pending`, and written, added to the other copy, to copy `valid` of `counted`, which has two one after the other. */
void kernel_count(const int32_t *in, int64_t rows, int64_t lanes, const int64_t *chosen, int64_t count,
                  const int64_t *shift, int votes, const int64_t *valid, int64_t *counted, int64_t *pending) {
    for (int64_t at = 0; at < count; at++) {
        const int by = (int)shift[at] + votes;
        const uint64_t less = (uint64_t)votes << shift[at];
        const int64_t first = chosen[at] * lanes, copy = rows * lanes;
        const int32_t *restrict from = in + first;
        const int64_t *restrict before = counted + (1 - valid[at]) * copy + first;
        int64_t *restrict after = counted + valid[at] * copy + first, *restrict left = pending + first;
        for (int64_t i = 0; i < lanes; i++) {
            const uint64_t value = ((uint64_t)(int64_t)from[i] << by) - less;
            after[i] = (int64_t)((uint64_t)before[i] + value);
            left[i] = (int64_t)((uint64_t)left[i] - value);
        }
    }
}

/* Values times a factor for each row, as floats. */
void kernel_scale(const int64_t *values, int64_t rows, int64_t lanes, const double *factor, float *out) {
    for (int64_t row = 0; row < rows; row++, values += lanes, out += lanes)
        for (int64_t i = 0; i < lanes; i++)
            out[i] = (float)((double)values[i] * factor[row]);
}

/* A step of SGD with momentum. */
void kernel_step(const float *restrict gradient, int64_t size, float rate, float momentum, float *restrict velocity,
                 float *restrict parameters) {
    for (int64_t i = 0; i < size; i++) {
        velocity[i] = velocity[i] * momentum + gradient[i];
        parameters[i] -= rate * velocity[i];
    }
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

/* Rows from the first on that have the same number, at most a chunk of them: they are done as one. */
static int64_t alike(const int64_t *number, int64_t rows, int64_t lanes) {
    int64_t most = CHUNK_LANES / lanes, found = 1;
    while (found < rows && found < most && number[found] == number[0])
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
            round_by_chance(values + at, at, size, (int)shift[row], limit, (uint32_t)seed, out);
        kernel_pack(out, size, width, packed + at * width / 8);
    }
}

/* kernel_votes, and packed; `keep` and `buffer` as above. */
void kernel_encode_votes(const int64_t *values, int64_t size, int width, int32_t *keep, int32_t *buffer,
                         uint8_t *packed) {
    for (int64_t at = 0, chunk; at < size; at += chunk) {
        chunk = size - at < CHUNK_LANES ? size - at : CHUNK_LANES;
        int32_t *out = keep ? keep + at : buffer;
        kernel_votes(values + at, chunk, out);
        kernel_pack(out, chunk, width, packed + at * width / 8);
    }
}

/* Unpacked and kernel_spread, of blocks that are each somewhere, to `total`, and times `factor` to `mean`. `buffer` has
 * room for a block. */
void kernel_average(const uint8_t *const *blocks, int64_t rows, int64_t lanes, const int64_t *shift,
                    const int64_t *base, const double *factor, int width, int is_signed, int32_t *buffer,
                    int64_t *total, float *mean) {
    for (int64_t row = 0; row < rows; row++, total += lanes, mean += lanes) {
        kernel_unpack(blocks[row], lanes, width, is_signed, buffer);
        kernel_spread(buffer, 1, lanes, shift + row, base + row, total);
        kernel_scale(total, 1, lanes, factor + row, mean);
    }
}
