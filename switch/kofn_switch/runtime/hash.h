// The hash algorithms of v1model over a byte string.
#ifndef KOFN_HASH_H
#define KOFN_HASH_H

#include <stdint.h>
#include "bits.h"

// The Internet checksum (RFC 1071), four 16-bit words at a time: a carry out of 64 bits is added to the lowest bit, and the
// four words of the sum are added last. A sum is 0 only if all its terms are 0.

static inline uint64_t csum_add(uint64_t sum, uint64_t number) {
    sum += number;
    return sum + (sum < number);
}

// Rotate by `by` modulo the 16 bits of a word.
static inline uint64_t csum_rotate(uint64_t number, unsigned by) {
    by %= 16;
    return by ? number << by | number >> (64 - by) : number;
}

// Sum `limbs` whole limbs (less than 2^31), and one more limb under `mask`.
static inline uint64_t csum_limbs(const uint64_t *from, unsigned limbs, uint64_t mask) {
    uint64_t low = 0, high = 0;
#pragma GCC unroll 4
    for (unsigned i = 0; i < limbs; i++) {
        low += (uint32_t)from[i];
        high += from[i] >> 32;
    }
    return mask ? csum_add(low + high, from[limbs] & mask) : low + high;
}

// Sum bytes; an odd last byte is padded with zero.
static inline uint64_t csum_bytes(const uint8_t *data, uint64_t bytes) {
    uint64_t sum = 0;
    for (; bytes >= 8; data += 8, bytes -= 8) sum = csum_add(sum, load_bytes(data, 8));
    for (; bytes >= 2; data += 2, bytes -= 2) sum = csum_add(sum, load_bytes(data, 2));
    return bytes ? csum_add(sum, (uint64_t)data[0] << 8) : sum;
}

static inline uint64_t csum_fold(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum ^ 0xffff;
}

static inline uint64_t hash_csum16(const uint8_t *data, uint64_t bytes) { return csum_fold(csum_bytes(data, bytes)); }

// Tables hold the remainder of each byte.
static inline uint64_t hash_crc_reflected(const uint8_t *data, uint64_t bytes, const uint64_t *table, uint64_t start) {
    uint64_t crc = start;
    for (uint64_t i = 0; i < bytes; i++) crc = crc >> 8 ^ table[(crc ^ data[i]) & 0xff];
    return crc;
}

static inline uint64_t hash_crc_forward(const uint8_t *data, uint64_t bytes, const uint64_t *table, uint64_t start,
                                        unsigned width) {
    uint64_t crc = start, mask = ~(uint64_t)0 >> (64 - width);
    for (uint64_t i = 0; i < bytes; i++) crc = (crc << 8 ^ table[(crc >> (width - 8) ^ data[i]) & 0xff]) & mask;
    return crc;
}

static inline uint64_t hash_xor16(const uint8_t *data, uint64_t bytes) {
    uint64_t hash = 0;
    for (; bytes >= 2; data += 2, bytes -= 2) hash ^= load_bytes(data, 2);
    return bytes ? hash ^ (uint64_t)data[0] << 8 : hash;
}

static inline uint64_t hash_xor32(const uint8_t *data, uint64_t bytes) {
    uint64_t hash = 0;
    for (; bytes >= 4; data += 4, bytes -= 4) hash ^= load_bytes(data, 4);
    return bytes ? hash ^ load_bytes(data, (unsigned)bytes) << (32 - 8 * bytes) : hash;
}

// Return the first 8 bytes, or all bytes if there are fewer, as a number.
static inline uint64_t hash_identity(const uint8_t *data, uint64_t bytes) {
    uint64_t hash = 0;
    for (uint64_t i = 0; i < 8 && i < bytes; i++) hash = hash << 8 | data[i];
    return hash;
}

// BMv2's key is all zero by default, and with this key every hash is 0.
static inline uint64_t hash_toeplitz(const uint8_t *data, uint64_t bytes) { return (void)data, (void)bytes, 0; }

// FNV-1 of signed bytes, then mixed.
static inline uint64_t hash_hash_ex(const uint8_t *data, uint64_t bytes) {
    uint32_t hash = 2166136261u;
    for (uint64_t i = 0; i < bytes; i++) hash = (hash ^ (uint32_t)(int8_t)data[i]) * 16777619u;
    hash += hash << 13;
    hash ^= hash >> 7;
    hash += hash << 3;
    hash ^= hash >> 17;
    return (uint32_t)(hash + (hash << 5));
}

// XXH64 with seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).

#define XXH_1 0x9e3779b185ebca87u
#define XXH_2 0xc2b2ae3d27d4eb4fu
#define XXH_3 0x165667b19e3779f9u
#define XXH_4 0x85ebca77c2b2ae63u
#define XXH_5 0x27d4eb2f165667c5u

static inline uint64_t xxh_rotate(uint64_t value, unsigned by) { return value << by | value >> (64 - by); }

static inline uint64_t xxh_little(const uint8_t *from, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = bytes; i-- > 0;) value = value << 8 | from[i];
    return value;
}

static inline uint64_t xxh_round(uint64_t lane, uint64_t input) { return xxh_rotate(lane + input * XXH_2, 31) * XXH_1; }

static inline uint64_t hash_xxh64(const uint8_t *data, uint64_t bytes) {
    uint64_t lanes[4] = {XXH_1 + XXH_2, XXH_2, 0, -XXH_1}, hash = XXH_5, left = bytes;
    for (; left >= 32; left -= 32, data += 32)
        for (unsigned i = 0; i < 4; i++) lanes[i] = xxh_round(lanes[i], xxh_little(data + 8 * i, 8));
    if (bytes >= 32) {
        hash = xxh_rotate(lanes[0], 1) + xxh_rotate(lanes[1], 7) + xxh_rotate(lanes[2], 12) + xxh_rotate(lanes[3], 18);
        for (unsigned i = 0; i < 4; i++) hash = (hash ^ xxh_round(0, lanes[i])) * XXH_1 + XXH_4;
    }
    hash += bytes;
    for (; left >= 8; left -= 8, data += 8)
        hash = xxh_rotate(hash ^ xxh_round(0, xxh_little(data, 8)), 27) * XXH_1 + XXH_4;
    for (; left >= 4; left -= 4, data += 4)
        hash = xxh_rotate(hash ^ xxh_little(data, 4) * XXH_1, 23) * XXH_2 + XXH_3;
    for (; left > 0; left--, data++) hash = xxh_rotate(hash ^ data[0] * XXH_5, 11) * XXH_1;
    hash = (hash ^ hash >> 33) * XXH_2;
    hash = (hash ^ hash >> 29) * XXH_3;
    return hash ^ hash >> 32;
}

static inline uint64_t hash_bmv2_hash(const uint8_t *data, uint64_t bytes) { return hash_xxh64(data, bytes); }

#endif
