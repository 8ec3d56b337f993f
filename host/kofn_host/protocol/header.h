/* A packet's header in memory and on the wire (common/kofn_common/wire/packet.py has the fields). */
#pragma once
#include <stdint.h>

#include "kofn_header.h"

struct header {
#define MEMBER(type, name, at, bits) type name;
    KOFN_FIELDS(MEMBER)
#undef MEMBER
    uint64_t members[KOFN_PARTS]; /* bit r of members[p]: part p of rank r */
};

/* The number of a block in a slot; it only grows. */
struct block_id {
    uint32_t generation, iteration, block;
};

/* Read the members of one rack. */
void header_members(const uint8_t *wire, uint64_t *members);
/* Write the members of one rack, KOFN_MEMBERS_BYTES. */
void header_put_members(const uint64_t *members, uint8_t *wire);
/* Return -1, 0 or 1: the packet's block is earlier than `other`, the same, or later. */
int header_compare(const struct header *header, const struct block_id *other);
/* Return whether the packet's iteration is further ahead of the slot's iteration than any worker can be (p4src/is_ahead.p4);
 * `slots`: the job's number of slots. */
int header_is_ahead(const struct header *header, const struct block_id *slot, int64_t slots);
struct header header_read(const uint8_t *wire);
/* Write all KOFN_HEADER_BYTES, with `checksum` as given. */
void header_write(const struct header *header, uint8_t *wire);

static inline int header_same_block(const struct header *header, const struct header *other) {
    return header->generation == other->generation && header->iteration == other->iteration && header->block == other->block;
}
