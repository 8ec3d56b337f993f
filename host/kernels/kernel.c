/* The arithmetic of host/kernels/kernel.py once more, in one pass each: the same integers and the same floats, bit for bit.
 *
 * Blocks are rows of `lanes` values; `shift` (0 to 41) and `factor` have one number for each row. Arrays do not overlap.
 * Right shifts of negative numbers are arithmetic (gcc, clang), as in NumPy. Wrap-around is meant where it can happen:
 * it is written in unsigned numbers.
 */
#include "values.h"

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

/* Lanes: values in steps of 2**shift, to the nearest, half a step up. */
void kernel_round(const int64_t *values, int64_t rows, int64_t lanes, const int64_t *shift, int64_t limit,
                  int32_t *out) {
    for (int64_t row = 0; row < rows; row++)
        round_all(values + row * lanes, lanes, (int)shift[row], limit, out + row * lanes);
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
    vote_all(values, size, out);
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

void kernel_pack(const int32_t *lanes, int64_t size, int width, void *out) {
    pack(lanes, size, width, out);
}

void kernel_unpack(const void *in, int64_t size, int width, int is_signed, int32_t *lanes) {
    unpack(in, size, width, is_signed, lanes);
}

/* Rows from the first on that have the same number, at most a chunk of them: they are done as one. */
static int64_t alike(const int64_t *number, int64_t rows, int64_t lanes) {
    int64_t most = CHUNK_LANES / lanes, found = 1;
    while (found < rows && found < most && number[found] == number[0])
        found++;
    return found;
}

/* kernel_round (seed < 0) or kernel_round_by_chance, and packed while the lanes are in the cache. `buffer` has room for
 * a row and for CHUNK_LANES lanes. */
void kernel_encode(const int64_t *values, int64_t rows, int64_t lanes, const int64_t *shift, int64_t limit,
                   int64_t seed, int width, int32_t *buffer, uint8_t *packed) {
    for (int64_t row = 0, run; row < rows; row += run) {
        run = alike(shift + row, rows - row, lanes);
        const int64_t at = row * lanes, size = run * lanes;
        if (seed < 0)
            kernel_round(values + at, 1, size, shift + row, limit, buffer);
        else
            round_by_chance(values + at, at, size, (int)shift[row], limit, (uint32_t)seed, buffer);
        pack(buffer, size, width, packed + at * width / 8);
    }
}

/* kernel_votes, and packed. */
void kernel_encode_votes(const int64_t *values, int64_t size, uint8_t *packed) {
    pack_votes(values, size, packed);
}

/* Lanes of 32 bits of blocks that are each somewhere. */
void kernel_gather(const uint8_t *const *places, int64_t rows, int64_t lanes, int32_t *out) {
    for (int64_t row = 0; row < rows; row++)
        unpack(places[row], lanes, 32, 1, out + row * lanes);
}
