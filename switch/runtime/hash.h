// The hash algorithms of v1model over a byte string.
#ifndef KOFN_HASH_H
#define KOFN_HASH_H

#include <stdint.h>
#include "bits.h"

// The Internet checksum (RFC 1071), four 16-bit words at a time: carries out of 64 bits come back in at the end, and the
// four are added up last. A sum is 0 only if all that was added is.

static inline uint64_t csum_add(uint64_t sum, uint64_t number) {
    sum += number;
    return sum + (sum < number);
}

// `by` modulo the 16 bits of a word.
static inline uint64_t csum_rotate(uint64_t number, unsigned by) {
    by %= 16;
    return by ? number << by | number >> (64 - by) : number;
}

// `limbs` whole ones (less than 2^31) and the bits of one more that `mask` has.
static inline uint64_t csum_limbs(const uint64_t *from, unsigned limbs, uint64_t mask) {
    uint64_t low = 0, high = 0;
#pragma GCC unroll 4
    for (unsigned i = 0; i < limbs; i++) {
        low += (uint32_t)from[i];
        high += from[i] >> 32;
    }
    return mask ? csum_add(low + high, from[limbs] & mask) : low + high;
}

// An odd last byte is padded with zero.
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

// Bit-serial, reflected: the polynomials' bits are reversed.
static inline uint64_t hash_crc_reflected(const uint8_t *data, uint64_t bytes, uint32_t polynomial, uint32_t start) {
    uint32_t crc = start;
    for (uint64_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    }
    return crc;
}

static inline uint64_t hash_crc16(const uint8_t *data, uint64_t bytes) {
    return hash_crc_reflected(data, bytes, 0xa001, 0);
}

static inline uint64_t hash_crc32(const uint8_t *data, uint64_t bytes) {
    return hash_crc_reflected(data, bytes, 0xedb88320u, 0xffffffffu) ^ 0xffffffffu;
}

static inline uint64_t hash_crcCCITT(const uint8_t *data, uint64_t bytes) {
    uint32_t crc = 0xffff;
    for (uint64_t i = 0; i < bytes; i++) {
        crc ^= (uint32_t)data[i] << 8;
        for (int bit = 0; bit < 8; bit++) crc = crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0);
    }
    return crc & 0xffff;
}

static inline uint64_t hash_xor16(const uint8_t *data, uint64_t bytes) {
    uint64_t hash = 0;
    for (; bytes >= 2; data += 2, bytes -= 2) hash ^= load_bytes(data, 2);
    return bytes ? hash ^ (uint64_t)data[0] << 8 : hash;
}

// The first 8 bytes, or the fewer there are, as a number.
static inline uint64_t hash_identity(const uint8_t *data, uint64_t bytes) {
    uint64_t hash = 0;
    for (uint64_t i = 0; i < 8 && i < bytes; i++) hash = hash << 8 | data[i];
    return hash;
}

#endif
