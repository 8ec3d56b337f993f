/* The switch's slots on a host, for the parameter server and the simulation; docs/reference/protocol.md has the rules. */
#pragma once
#include "header.h"

struct slot {
    uint32_t generation, iteration, block; /* id of its block */
    uint64_t members[KOFN_PARTS];
    uint32_t weight;
    int32_t count, addends, done;
    int32_t scale, words, lanes; /* its format */
    int32_t size; /* bytes of values */
    uint8_t values[KOFN_WORDS_MAX * KOFN_WORD_BYTES];
};

struct slots {
    int32_t workers, k, room; /* slots.py repeats the first fields */
    uint32_t generation;
    int64_t count;
    uint8_t zeros[KOFN_WORDS_MAX * KOFN_WORD_BYTES];
    uint8_t votes[KOFN_WORDS_MAX * KOFN_WORD_BYTES]; /* of the last answer */
    struct slot slots[];
};

/* The switch's answer, to workers `first` to `end`; the copies differ in `worker` only. If `recipient` is not everyone, only it
 * gets the sum, the others the header. */
struct answer {
    struct header header;
    const uint8_t *values; /* until the next packet */
    int32_t size, first, end;
    int32_t recipient; /* KOFN_EVERYONE: all */
};

/* The slots of a job of `workers` workers. A sum closes with `k` counted contributions, or with as many addends as workers.
 * NULL: no memory. */
struct slots *slots_open(int32_t workers, int32_t k, int64_t count);
void slots_close(struct slots *slots);
/* Handle a worker's packet; returns whether there is an answer. */
int slots_handle(struct slots *slots, const struct header *header, const uint8_t *values, int32_t size,
                 struct answer *answer);
/* The same with headers as on the wire; `to` gets the answer's size, first, end and recipient. Returns its values; NULL: no
 * answer. */
const uint8_t *slots_put(struct slots *slots, const uint8_t *header, const uint8_t *values, int32_t size,
                         uint8_t *answer, int32_t *to);
