/* The switch's slots as host/protocol/slot_model.py has them, which says what the rules are: the same answers, faster. */
#pragma once
#include "header.h"

struct slot {
    uint32_t generation, iteration, block; /* whose block is in it */
    uint64_t members[KOFN_PARTS];
    uint32_t weight;
    int32_t count, addends, done;
    int32_t scale, words, lanes; /* its format */
    int32_t size, room; /* of the values, in bytes, and what there is memory for */
    uint8_t *values;
};

struct slots {
    int32_t workers, k, room;
    uint32_t generation;
    int64_t count;
    struct slot *slots;
    uint8_t zeros[KOFN_WORDS_MAX * KOFN_WORD_BYTES];
    uint8_t votes[KOFN_WORDS_MAX * KOFN_WORD_BYTES]; /* of the last answer */
};

/* What the switch sends: to workers `first` to `end`, all the same but for `worker`; a sum to `recipient` alone, if that is
 * not everyone, and the header to the others. */
struct answer {
    struct header header;
    const uint8_t *values; /* until the next packet */
    int32_t size, first, end;
    int32_t recipient; /* KOFN_EVERYONE: all */
};

/* Of a job of `workers` workers, summing until `k` are in or as many addends as there are workers. */
struct slots *slots_open(int32_t workers, int32_t k, int64_t count);
void slots_close(struct slots *slots);
void slots_set_k(struct slots *slots, int32_t k);
/* Take a packet of a worker; whether there is an answer. */
int slots_handle(struct slots *slots, const struct header *header, const uint8_t *values, int32_t size,
                 struct answer *answer);
