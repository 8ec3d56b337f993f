/* A packet's header in memory, and as on the wire (host/wire/packet.py has the table of fields). */
#pragma once
#include <stdint.h>

#include "kofn_header.h"

struct header {
    uint64_t members[KOFN_PARTS]; /* bit r of number p: part p of rank r */
    uint32_t generation, iteration, block, weight;
    uint16_t k, slot, checksum;
    int16_t scale;
    uint8_t version, kind, job, worker, recipient, lanes, flags, words, count, part;
};

struct header header_read(const uint8_t *wire);
/* All KOFN_HEADER_BYTES of it, with `checksum` as it is. */
void header_write(const struct header *header, uint8_t *wire);
