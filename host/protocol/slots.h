/* The switch's slots at a host, by the rules of docs/reference/protocol.md: the parameter server's and the simulation's. */
#pragma once
#include "header.h"

struct slot {
    uint32_t generation, iteration, block; /* whose block is in it */
    uint64_t members[KOFN_PARTS];
    uint32_t weight;
    int32_t count, addends, done;
    int32_t scale, words, lanes; /* its format */
    int32_t size; /* of the values, in bytes */
    uint8_t values[KOFN_WORDS_MAX * KOFN_WORD_BYTES];
};

struct slots {
    int32_t workers, k, room; /* the first fields: slots.py has them */
    uint32_t generation;
    int64_t count;
    uint8_t zeros[KOFN_WORDS_MAX * KOFN_WORD_BYTES];
    uint8_t votes[KOFN_WORDS_MAX * KOFN_WORD_BYTES]; /* of the last answer */
    struct slot slots[];
};

/* What the switch sends: to workers `first` to `end`, all the same but for `worker`; a sum to `recipient` alone, if that is
 * not everyone, and the header to the others. */
struct answer {
    struct header header;
    const uint8_t *values; /* until the next packet */
    int32_t size, first, end;
    int32_t recipient; /* KOFN_EVERYONE: all */
};

/* Of a job of `workers` workers, summing until `k` are in or as many addends as there are workers. NULL: no memory. */
struct slots *slots_open(int32_t workers, int32_t k, int64_t count);
void slots_close(struct slots *slots);
/* Take a packet of a worker; whether there is an answer. */
int slots_handle(struct slots *slots, const struct header *header, const uint8_t *values, int32_t size,
                 struct answer *answer);
/* The same with headers as on the wire; `to`: the answer's size, first, end and recipient. Its values; NULL: there is none. */
const uint8_t *slots_put(struct slots *slots, const uint8_t *header, const uint8_t *values, int32_t size,
                         uint8_t *answer, int32_t *to);
