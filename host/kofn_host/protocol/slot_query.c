/* Questions to the switch about a block's members: PULLs with a number of words that the block never has.
 *
 * This part asks for the first open block, and provides the header of such a PULL to the link's probe. It draws no conclusion
 * from the members.
 */
#include "core_parts.h"

#include <string.h>

/* A number of words that the block does not have in lanes of any width. */
static int64_t other_words(const struct core *core, int64_t block) {
    for (int64_t words = 1;; words++) {
        int known = 0;
        for (int lanes = 0; lanes < LANE_CODES; lanes++)
            known |= layout_words(&core->layout, block, lanes) == words;
        if (!known)
            return words;
    }
}

/* A PULL that the switch answers as long as the slot has this block or a later block. */
struct header slot_query_header(const struct core *core, int64_t block) {
    struct header header = requests_pull_header(core, block);
    header.words = (uint8_t)other_words(core, block);
    return header;
}

/* Whether this is the answer to the slot query; such an answer has no other meaning. */
int slot_query_hears(struct slot_query *query, const struct header *answer) {
    if (!query->asked || answer->kind != KOFN_FORMAT_MISMATCH || answer->words != query->header.words ||
        !header_same_block(answer, &query->header))
        return 0;
    query->answered = 1;
    memcpy(query->members, answer->members, sizeof query->members);
    return 1;
}

int core_ask_slot(struct core *core) {
    if (core->regrouping || !core->open_count)
        return 0;
    requests_pass_closed(core);
    const struct header header = slot_query_header(core, core->blocks[core->closed]);
    struct slot_query *query = &core->query;
    query->answered &= query->asked && header_same_block(&query->header, &header);
    query->asked = 1;
    query->header = header;
    query->block = header.block;
    return instruct_send(core, &header, core->zeros, header.words * KOFN_WORD_BYTES, 0);
}
