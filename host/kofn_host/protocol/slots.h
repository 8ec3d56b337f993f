/* The slots of a switch alone, or of a tree's root, on a host, for the parameter server and the simulation;
 * docs/reference/protocol.md and tree.md have the rules. */
#pragma once
#include "answer.h"

struct slot {
    struct block_id id;
    uint64_t members[KOFN_RACKS_MAX][KOFN_PARTS]; /* of a switch alone: rack 0 */
    uint32_t weight;
    int32_t count, addends, done;
    int32_t told; /* the number of missing contributions that all leaves heard last */
    int32_t scale, words, lanes; /* the format */
    int32_t size; /* bytes of values */
    uint8_t values[KOFN_WORDS_MAX * KOFN_WORD_BYTES];
};

struct slots {
    int32_t workers, k, room;
    uint32_t generation;
    int32_t racks; /* number of racks of a root; 0: a switch alone */
    int64_t count;
    uint8_t votes[KOFN_WORDS_MAX * KOFN_WORD_BYTES];             /* of the last answer */
    uint8_t bitmaps[KOFN_RACKS_MAX * KOFN_MEMBERS_BYTES];
    struct slot slots[];
};

/* The slots of a job of `workers` workers: at a root of `racks` racks, or, with 0 racks, at a switch alone. A sum closes with `k`
 * counted contributions, or with as many addends as workers. NULL: no memory. */
struct slots *slots_open(int32_t workers, int32_t k, int64_t count, int32_t racks);
void slots_close(struct slots *slots);
/* Handle a packet of a worker or a leaf; returns whether there is an answer. */
int slots_handle(struct slots *slots, const struct header *header, const uint8_t *values, int32_t size,
                 struct answer *answer);
/* As slots_handle(), for a switch alone, with headers as on the wire; `to` gets the answer's size, first, end and recipient.
 * Returns the answer's values; NULL: no answer. */
const uint8_t *slots_put(struct slots *slots, const uint8_t *header, const uint8_t *values, int32_t size,
                         uint8_t *answer, int32_t *to);
