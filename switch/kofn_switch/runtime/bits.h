// Packet bytes (big-endian bit order) to integers and back.
#ifndef KOFN_BITS_H
#define KOFN_BITS_H

#include <stdint.h>
#include <string.h>

// Read the next `bytes` (1..8, a constant in generated code) as one number.
static inline uint64_t load_bytes(const uint8_t *from, unsigned bytes) {
    uint64_t value = 0;
    switch (bytes) {
    case 1: return from[0];
    case 2: { uint16_t v; memcpy(&v, from, 2); return __builtin_bswap16(v); }
    case 4: { uint32_t v; memcpy(&v, from, 4); return __builtin_bswap32(v); }
    case 6: return load_bytes(from, 4) << 16 | load_bytes(from + 4, 2);
    case 8: memcpy(&value, from, 8); return __builtin_bswap64(value);
    }
    for (unsigned i = 0; i < bytes; i++) value = value << 8 | from[i];
    return value;
}

// Test whether an Ethernet frame is UDP over IPv4 to a port.
static inline int is_udp_to(const uint8_t *frame, uint32_t length, uint32_t port) {
    const uint8_t *ip = frame + 14;
    if (length < 34 || load_bytes(frame + 12, 2) != 0x0800 || ip[9] != 17) return 0;
    uint32_t udp = 14 + 4 * (ip[0] & 15u);
    return length >= udp + 8 && load_bytes(frame + udp + 2, 2) == port;
}

static inline void store_bytes(uint8_t *to, uint64_t value, unsigned bytes) {
    switch (bytes) {
    case 1: to[0] = (uint8_t)value; return;
    case 2: { uint16_t v = __builtin_bswap16((uint16_t)value); memcpy(to, &v, 2); return; }
    case 4: { uint32_t v = __builtin_bswap32((uint32_t)value); memcpy(to, &v, 4); return; }
    case 6: store_bytes(to, value >> 16, 4); store_bytes(to + 4, value, 2); return;
    case 8: value = __builtin_bswap64(value); memcpy(to, &value, 8); return;
    }
    for (unsigned i = bytes; i-- > 0; value >>= 8) to[i] = (uint8_t)value;
}

// Read `width` (1..64) bits that start `offset` bits into `from`.
static inline uint64_t load_bits(const uint8_t *from, uint64_t offset, unsigned width) {
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++, offset++) value = value << 1 | (from[offset / 8] >> (7 - offset % 8) & 1);
    return value;
}

static inline void store_bits(uint8_t *to, uint64_t offset, uint64_t value, unsigned width) {
    for (unsigned i = width; i-- > 0; value >>= 1) {
        uint8_t mask = (uint8_t)(0x80 >> (offset + i) % 8);
        uint8_t *byte = &to[(offset + i) / 8];
        *byte = (uint8_t)(value & 1 ? *byte | mask : *byte & ~mask);
    }
}

// Reverse the order of all bytes, which converts between limbs and a big-endian number.
typedef uint8_t byte_vector __attribute__((vector_size(32)));
#define VECTOR_LIMBS 4
static inline void reverse_vector(void *to, const void *from) {
    byte_vector bytes;
    memcpy(&bytes, from, sizeof bytes);
    bytes = __builtin_shuffle(bytes, (byte_vector){31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
                                                   15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
    memcpy(to, &bytes, sizeof bytes);
}

// Read limbs from whole words: width is a multiple of 64 and the first bit begins a byte.
static inline void load_words(uint64_t *to, const uint8_t *from, unsigned limbs) {
    unsigned i = 0;
#pragma GCC unroll 4
    for (; i + VECTOR_LIMBS <= limbs; i += VECTOR_LIMBS) reverse_vector(to + i, from + 8 * (limbs - VECTOR_LIMBS - i));
    for (; i < limbs; i++) {
        uint64_t word;
        memcpy(&word, from + 8 * (limbs - 1 - i), 8);
        to[i] = __builtin_bswap64(word);
    }
}

static inline void store_words(uint8_t *to, const uint64_t *from, unsigned limbs) {
    unsigned i = 0;
#pragma GCC unroll 4
    for (; i + VECTOR_LIMBS <= limbs; i += VECTOR_LIMBS) reverse_vector(to + 8 * i, from + limbs - VECTOR_LIMBS - i);
    for (; i < limbs; i++) {
        uint64_t word = __builtin_bswap64(from[limbs - 1 - i]);
        memcpy(to + 8 * i, &word, 8);
    }
}

// Read limbs of any width from any bit.
static inline void load_wide(uint64_t *to, const uint8_t *from, uint64_t offset, unsigned width) {
    unsigned limb = 0;
    for (unsigned left = width; left > 0; limb++) {
        unsigned take = left < 64 ? left : 64;
        left -= take;
        to[limb] = load_bits(from, offset + left, take);
    }
}

// Read limbs from `bits` bits, a whole number of bytes that may begin at any bit; higher limbs become zero.
static inline void load_variable(uint64_t *to, unsigned limbs, const uint8_t *from, uint64_t offset, unsigned bits) {
    memset(to, 0, limbs * 8);
    if (offset % 8) {
        load_wide(to, from, offset, bits);
        return;
    }
    from += offset / 8;
    for (unsigned i = 0; i < bits / 8; i++) to[i / 8] |= (uint64_t)from[bits / 8 - 1 - i] << i % 8 * 8;
}

static inline void store_wide(uint8_t *to, uint64_t offset, const uint64_t *from, unsigned width) {
    unsigned limb = 0;
    for (unsigned left = width; left > 0; limb++) {
        unsigned take = left < 64 ? left : 64;
        left -= take;
        store_bits(to, offset + left, from[limb], take);
    }
}

static inline void store_variable(uint8_t *to, uint64_t offset, const uint64_t *from, unsigned bits) {
    if (offset % 8 || bits % 8) {
        store_wide(to, offset, from, bits);
        return;
    }
    to += offset / 8;
    for (unsigned i = 0; i < bits / 8; i++) to[bits / 8 - 1 - i] = (uint8_t)(from[i / 8] >> i % 8 * 8);
}

#endif
