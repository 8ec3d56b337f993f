// Fields and checksums of Ethernet frames with UDP in IP.
#ifndef KOFN_FRAME_FIELDS_H
#define KOFN_FRAME_FIELDS_H

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <stdint.h>
#include <string.h>

enum {
    TYPE_AT = 12,  // of the EtherType in a frame
    UDP_BYTES = 8,
};

static inline uint16_t get(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return ntohs(value);
}

static inline void put(uint8_t *at, uint32_t value) {
    const uint16_t word = htons((uint16_t)value);
    memcpy(at, &word, sizeof word);
}

// The Internet checksum (RFC 1071) of words in the order of this machine, whose sum is the same but for its byte order.

static inline uint64_t sum_of(const uint8_t *bytes, uint32_t count) {
    uint64_t sum = 0;
    uint32_t word = 0;
    for (uint32_t i = 0; i < count / 4; i++) {
        memcpy(&word, bytes + 4 * i, 4);
        sum += word;
    }
    word = 0;
    memcpy(&word, bytes + count / 4 * 4, count % 4);
    return sum + word;
}

static inline uint16_t folded(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

// Write the checksum of a sum. UDP and TCP have 0xffff in place of 0, which in UDP means that there is no checksum.
static inline void put_transport_checksum(uint8_t *at, uint64_t sum) {
    uint16_t checksum = (uint16_t)~folded(sum);
    if (!checksum) checksum = 0xffff;
    memcpy(at, &checksum, sizeof checksum);
}

// Change a 16-bit field of an IPv4 header and its checksum (RFC 1624): a checksum that was wrong stays wrong.
static inline void change_field(uint8_t *ip, uint32_t at, uint32_t value) {
    uint16_t before, after, checksum;
    memcpy(&before, ip + at, 2);
    put(ip + at, value);
    memcpy(&after, ip + at, 2);
    memcpy(&checksum, ip + 10, 2);
    checksum = (uint16_t)~folded((uint64_t)(uint16_t)~checksum + (uint16_t)~before + after);
    memcpy(ip + 10, &checksum, 2);
}

// The sum of the pseudo header of UDP, without the length.
static inline uint64_t pseudo_sum(const uint8_t *ip) {
    const int four = ip[0] >> 4 == 4;
    return sum_of(ip + (four ? 12 : 8), four ? 8 : 32) + htons(IPPROTO_UDP);
}

#endif
