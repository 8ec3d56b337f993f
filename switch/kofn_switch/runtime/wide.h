// Integers of more than 64 bits: arrays of limbs, least significant first, two's complement where signed.
#ifndef KOFN_WIDE_H
#define KOFN_WIDE_H

#include <stdint.h>
#include <string.h>

#define WIDE_MAX 256  // limbs; the generator refuses programs that need more

#define WIDE_VECTOR 8  // limbs of a vector, the widest of any processor; other processors copy it in parts
typedef uint64_t wide_vector __attribute__((vector_size(8 * WIDE_VECTOR)));

static const uint64_t wide_zero[WIDE_MAX];

static inline uint8_t add_carry(uint8_t carry, uint64_t a, uint64_t b, uint64_t *sum) {
#ifdef __x86_64__  // not by immintrin.h, for which the compiler reads a megabyte of headers
    unsigned long long result;
    carry = __builtin_ia32_addcarryx_u64(carry, a, b, &result);
    *sum = result;
    return carry;
#else
    uint64_t partial;
    uint8_t first = __builtin_add_overflow(a, b, &partial);
    return first | __builtin_add_overflow(partial, (uint64_t)carry, sum);
#endif
}

static inline uint64_t shift_left(uint64_t value, uint64_t by) { return by < 64 ? value << by : 0; }
static inline uint64_t shift_right(uint64_t value, uint64_t by) { return by < 64 ? value >> by : 0; }
static inline uint64_t shift_right_signed(uint64_t value, uint64_t by) {
    return (uint64_t)((int64_t)value >> (by < 64 ? by : 63));
}
static inline uint64_t sign_extend(uint64_t value, unsigned width) {
    return (uint64_t)((int64_t)(value << (64 - width)) >> (64 - width));
}
static inline uint64_t divide(uint64_t a, uint64_t b) { return b ? a / b : 0; }
static inline uint64_t modulo(uint64_t a, uint64_t b) { return b ? a % b : 0; }

// Copy between places that are equal or do not overlap. A size that is known at compile time is copied in whole vectors: most
// wide fields are words of a packet, for which a call of memmove takes longer than the copy.
static inline __attribute__((always_inline)) void wide_copy(uint64_t *to, const uint64_t *from, unsigned limbs) {
    if (!__builtin_constant_p(limbs) || limbs % WIDE_VECTOR || limbs > 64) {
        memmove(to, from, limbs * 8);
        return;
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < limbs; i += WIDE_VECTOR) {
        wide_vector part;
        memcpy(&part, from + i, sizeof part);
        memcpy(to + i, &part, sizeof part);
    }
}

static inline void wide_extend(uint64_t *to, unsigned limbs, const uint64_t *from, unsigned have, int negative) {
    for (unsigned i = 0; i < limbs; i++) to[i] = i < have ? from[i] : negative ? ~(uint64_t)0 : 0;
}

// Make bit width - 1 the sign of all limbs.
static inline void wide_sign_extend(uint64_t *value, unsigned limbs, unsigned width) {
    unsigned top = (width - 1) / 64;
    if (top >= limbs) return;
    value[top] = sign_extend(value[top], width - top * 64);
    for (unsigned i = top + 1; i < limbs; i++) value[i] = (int64_t)value[top] < 0 ? ~(uint64_t)0 : 0;
}

static inline int wide_nonzero(const uint64_t *value, unsigned limbs) {
    uint64_t any = 0;
    for (unsigned i = 0; i < limbs; i++) any |= value[i];
    return any != 0;
}

// Return the value as a shift amount; a value of more than 64 bits becomes 2^64 - 1.
static inline uint64_t wide_amount(const uint64_t *value, unsigned limbs) {
    return limbs > 1 && wide_nonzero(value + 1, limbs - 1) ? ~(uint64_t)0 : value[0];
}

// Return -1, 0, 1 as a is less than, equal to, greater than b.
static inline int wide_compare(const uint64_t *a, const uint64_t *b, unsigned limbs, int is_signed) {
    uint64_t bias = is_signed ? (uint64_t)1 << 63 : 0;
    for (unsigned i = limbs; i-- > 0; bias = 0) {
        uint64_t x = a[i] ^ bias, y = b[i] ^ bias;
        if (x != y) return x < y ? -1 : 1;
    }
    return 0;
}

static inline void wide_shift_left(uint64_t *to, const uint64_t *from, unsigned limbs, uint64_t by) {
    uint64_t whole = by / 64 < limbs ? by / 64 : limbs;
    unsigned part = by % 64;
    for (unsigned i = limbs; i-- > 0;) {
        uint64_t high = i >= whole ? from[i - whole] : 0;
        uint64_t low = i > whole ? from[i - whole - 1] : 0;
        to[i] = part ? high << part | low >> (64 - part) : high;
    }
}

static inline void wide_shift_right(uint64_t *to, const uint64_t *from, unsigned limbs, uint64_t by, int is_signed) {
    uint64_t fill = is_signed && (int64_t)from[limbs - 1] < 0 ? ~(uint64_t)0 : 0;
    uint64_t whole = by / 64 < limbs ? by / 64 : limbs;
    unsigned part = by % 64;
    for (unsigned i = 0; i < limbs; i++) {
        uint64_t low = i + whole < limbs ? from[i + whole] : fill;
        uint64_t high = i + whole + 1 < limbs ? from[i + whole + 1] : fill;
        to[i] = part ? low >> part | high << (64 - part) : low;
    }
}

// to must be neither a nor b.
static inline void wide_multiply(uint64_t *to, const uint64_t *a, const uint64_t *b, unsigned limbs) {
    memset(to, 0, limbs * 8);
    for (unsigned i = 0; i < limbs; i++) {
        unsigned __int128 carry = 0;
        for (unsigned j = 0; i + j < limbs; j++) {
            carry += (unsigned __int128)a[i] * b[j] + to[i + j];
            to[i + j] = (uint64_t)carry;
            carry >>= 64;
        }
    }
}

// Divide unsigned numbers, bit by bit; division by zero gives zero, as for narrow numbers.
static inline void wide_divide(uint64_t *quotient, uint64_t *rest, const uint64_t *a, const uint64_t *b,
                               unsigned limbs) {
    uint64_t shifted[WIDE_MAX];
    memset(quotient, 0, limbs * 8);
    memset(rest, 0, limbs * 8);
    if (!wide_nonzero(b, limbs)) return;
    for (unsigned bit = limbs * 64; bit-- > 0;) {
        uint64_t out = rest[limbs - 1] >> 63;
        wide_shift_left(shifted, rest, limbs, 1);
        shifted[0] |= a[bit / 64] >> bit % 64 & 1;
        memcpy(rest, shifted, limbs * 8);
        if (!out && wide_compare(rest, b, limbs, 0) < 0) continue;
        uint8_t carry = 1;
        for (unsigned i = 0; i < limbs; i++) carry = add_carry(carry, rest[i], ~b[i], &rest[i]);
        quotient[bit / 64] |= (uint64_t)1 << bit % 64;
    }
}

// Clamp a signed value in place to 0 .. 2^width - 1; width < limbs * 64.
static inline void wide_clamp_unsigned(uint64_t *value, unsigned limbs, unsigned width) {
    uint64_t top[WIDE_MAX];
    int negative = (int64_t)value[limbs - 1] < 0;
    wide_shift_right(top, value, limbs, width, 1);
    if (!negative && !wide_nonzero(top, limbs)) return;
    for (unsigned i = 0; i < limbs; i++) {
        unsigned bits = width > i * 64 ? width - i * 64 : 0;
        value[i] = negative || bits == 0 ? 0 : bits >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1;
    }
}

// Clamp a signed value in place to -2^(width-1) .. 2^(width-1) - 1; width < limbs * 64.
static inline void wide_clamp_signed(uint64_t *value, unsigned limbs, unsigned width) {
    uint64_t top[WIDE_MAX];
    int negative = (int64_t)value[limbs - 1] < 0;
    uint64_t fill = negative ? ~(uint64_t)0 : 0;
    wide_shift_right(top, value, limbs, width - 1, 1);
    for (unsigned i = 0; i < limbs; i++) top[i] ^= fill;
    if (!wide_nonzero(top, limbs)) return;
    for (unsigned i = 0; i < limbs; i++) {
        unsigned bits = width - 1 > i * 64 ? width - 1 - i * 64 : 0;
        uint64_t largest = bits == 0 ? 0 : bits >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1;
        value[i] = largest ^ fill;
    }
}

#endif
