/* The arithmetic of host/kofn_host/kernels/kernel.py; each function makes one pass over the data.
 *
 * Blocks are rows of `lanes` values; `shift` (0 to 41) and `factor` have one number per row. Arrays do not overlap.
 * Right shifts of negative numbers are arithmetic (gcc, clang), as in NumPy. Intended wrap-around uses unsigned numbers.
 */
#include "values.h"

/* Index of the first float that is not finite or above `most` in magnitude; -1: none. */
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

/* Round values to lanes in steps of 2**shift: to the nearest step; half a step is rounded up. */
void kernel_round(const int64_t *values, int64_t rows, int64_t lanes, const int64_t *shift, int64_t limit,
                  int32_t *out) {
    for (int64_t row = 0; row < rows; row++)
        round_all(values + row * lanes, lanes, (int)shift[row], limit, out + row * lanes);
}

enum { CHUNK_LANES = 1024, CHANCE_BITS = 16, IN_A_DRAW = 64 / CHANCE_BITS };

/* Hash a number to 64 bits: murmur3's finaliser. */
static inline uint64_t mixed(uint64_t bits) {
    bits ^= bits >> 33;
    bits *= 0xFF51AFD7ED558CCDu;
    bits ^= bits >> 33;
    bits *= 0xC4CEB9FE1A85EC53u;
    return bits ^ bits >> 33;
}

/* Stochastic rounding of a row that begins at element `first`: the mean is the value, to 2**-16 of a step. A draw serves four
 * elements; draws are made chunk by chunk. */
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

/* Votes: 1 for values >= 0, else 0. */
void kernel_votes(const int64_t *values, int64_t size, int32_t *out) {
    vote_all(values, size, out);
}

/* The values of lanes, minus `base`; for votes, `base` is the value of all votes cast. */
void kernel_spread(const int32_t *in, int64_t rows, int64_t lanes, const int64_t *shift, const int64_t *base,
                   int64_t *values) {
    for (int64_t row = 0; row < rows; row++, values += lanes, in += lanes) {
        const int by = (int)shift[row];
        const uint64_t less = (uint64_t)base[row];
        for (int64_t i = 0; i < lanes; i++)
            values[i] = (int64_t)(((uint64_t)(int64_t)in[i] << by) - less);
    }
}

/* Multiply values by their row's factor, as floats. */
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

/* measure() each row. */
void kernel_magnitudes(const int64_t *values, int64_t rows, int64_t lanes, uint64_t *high, uint64_t *low,
                       uint64_t *largest) {
    for (int64_t row = 0; row < rows; row++)
        measure(values + row * lanes, lanes, high + row, low + row, largest + row);
}

void kernel_pack(const int32_t *lanes, int64_t size, int width, void *out) {
    pack(lanes, size, width, out);
}

void kernel_unpack(const void *in, int64_t size, int width, int is_signed, int32_t *lanes) {
    unpack(in, size, width, is_signed, lanes);
}

/* The number of rows, from the first on, that have the same number, at most a chunk; the caller handles them as one row. */
static int64_t alike(const int64_t *number, int64_t rows, int64_t lanes) {
    int64_t most = CHUNK_LANES / lanes, found = 1;
    while (found < rows && found < most && number[found] == number[0])
        found++;
    return found;
}

/* kernel_round (seed < 0) or kernel_round_by_chance, then pack while the lanes are in the cache. `buffer` has room for a row
 * and for CHUNK_LANES lanes. */
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

/* kernel_votes, then pack. */
void kernel_encode_votes(const int64_t *values, int64_t size, uint8_t *packed) {
    pack_votes(values, size, packed);
}

/* Unpack 32-bit lanes of blocks at separate addresses. */
void kernel_gather(const uint8_t *const *places, int64_t rows, int64_t lanes, int32_t *out) {
    for (int64_t row = 0; row < rows; row++)
        unpack(places[row], lanes, 32, 1, out + row * lanes);
}
