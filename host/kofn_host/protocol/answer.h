/* A switch's answer to a packet. */
#pragma once
#include "header.h"

enum neighbours { TO_WORKERS, TO_LEAVES, TO_ROOT };

/* A packet to the workers or leaves `first` to `end` - 1, or to the root. If `recipient` is not everyone, only that neighbour gets
 * the values, and the members of an ADDED. */
struct answer {
    struct header header;
    const uint8_t *bitmaps, *values; /* valid until the next packet: header.bitmaps times 32 bytes, and `size` bytes */
    int32_t size, first, end;
    int32_t recipient; /* KOFN_EVERYONE: all */
    int32_t to;
};

/* Answer the sender with its own header, of another kind, and zeros as values. Returns 1: there is an answer. */
int answer_sender(struct answer *answer, const struct header *header, int kind);
struct header answer_header(const struct answer *answer, int32_t neighbour);
/* Return the number of bytes of the values that this neighbour gets. */
int32_t answer_size(const struct answer *answer, int32_t neighbour);
