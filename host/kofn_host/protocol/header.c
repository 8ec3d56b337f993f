#include "header.h"

#include <endian.h>
#include <string.h>

enum { MEMBERS = 8 * (KOFN_AT_MEMBERS - KOFN_FRAME_BYTES) };

/* The `bits` bits from bit `at` on: half a byte, or whole bytes. */
static inline uint64_t get(const uint8_t *wire, int at, int bits) {
    uint64_t value = 0;
    if (bits < 8)
        return wire[at / 8] >> (8 - at % 8 - bits) & ((1 << bits) - 1);
    memcpy(&value, wire + at / 8, (size_t)bits / 8);
    return be64toh(value) >> (64 - bits);
}

/* Set these bits, which must be 0 before. */
static inline void put(uint8_t *wire, int at, int bits, uint64_t value) {
    if (bits < 8) {
        wire[at / 8] |= (uint8_t)(value << (8 - at % 8 - bits));
        return;
    }
    value = htobe64(value << (64 - bits));
    memcpy(wire + at / 8, &value, (size_t)bits / 8);
}

void header_members(const uint8_t *wire, uint64_t *members) {
    for (int part = 0; part < KOFN_PARTS; part++)
        members[part] = get(wire, 64 * (KOFN_PARTS - 1 - part), 64);
}

void header_put_members(const uint64_t *members, uint8_t *wire) {
    for (int part = 0; part < KOFN_PARTS; part++)
        put(wire, 64 * (KOFN_PARTS - 1 - part), 64, members[part]);
}

int header_compare(const struct header *header, const struct block_id *other) {
    const uint32_t given[] = {header->generation, header->iteration, header->block};
    const uint32_t known[] = {other->generation, other->iteration, other->block};
    for (int at = 0; at < 3; at++)
        if (given[at] != known[at])
            return given[at] < known[at] ? -1 : 1;
    return 0;
}

int header_is_ahead(const struct header *header, const struct block_id *slot, int64_t slots) {
    return header->job <= KOFN_JOB_MAX && header->generation == slot->generation && slot->iteration &&
           (int64_t)header->iteration - slot->iteration > slots;
}

struct header header_read(const uint8_t *wire) {
    struct header header;
#define READ(type, name, at, bits) header.name = (type)get(wire, at, bits);
    KOFN_FIELDS(READ)
#undef READ
    header_members(wire + MEMBERS / 8, header.members);
    return header;
}

void header_write(const struct header *header, uint8_t *wire) {
    memset(wire, 0, KOFN_HEADER_BYTES);
#define WRITE(type, name, at, bits) put(wire, at, bits, (uint64_t)header->name);
    KOFN_FIELDS(WRITE)
#undef WRITE
    header_put_members(header->members, wire + MEMBERS / 8);
}
