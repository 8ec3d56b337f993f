// The hash algorithms of v1model over a byte string.
#ifndef KOFN_HASH_H
#define KOFN_HASH_H

#include <stdint.h>
#include "bits.h"

// The Internet checksum (RFC 1071), an odd last byte padded with zero.
static inline uint64_t hash_csum16(const uint8_t *data, uint64_t bytes) {
    uint64_t sum = 0;
    for (; bytes >= 2; data += 2, bytes -= 2) sum += load_bytes(data, 2);
    if (bytes) sum += (uint64_t)data[0] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum ^ 0xffff;
}

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
