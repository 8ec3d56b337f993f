#include "answer.h"

#include <string.h>

static const uint8_t ZEROS[KOFN_WORDS_MAX * KOFN_WORD_BYTES];

int answer_sender(struct answer *answer, const struct header *header, int kind) {
    *answer = (struct answer){.header = *header,
                              .values = ZEROS,
                              .size = header->words * KOFN_WORD_BYTES,
                              .first = header->worker,
                              .end = header->worker + 1,
                              .recipient = KOFN_EVERYONE};
    answer->header.kind = (uint8_t)kind;
    return 1;
}

static int is_whole(const struct answer *answer, int32_t neighbour) {
    return answer->recipient == KOFN_EVERYONE || answer->recipient == neighbour;
}

struct header answer_header(const struct answer *answer, int32_t neighbour) {
    struct header header = answer->header;
    if (answer->to == TO_ROOT)
        return header;
    header.worker = (uint8_t)neighbour;
    if (answer->to == TO_LEAVES)
        header.rack = (uint8_t)neighbour;
    if (!is_whole(answer, neighbour)) {
        header.words = 0;
        if (header.kind == KOFN_ADDED)
            memset(header.members, 0, sizeof header.members);
    }
    return header;
}

int32_t answer_size(const struct answer *answer, int32_t neighbour) {
    return is_whole(answer, neighbour) ? answer->size : 0;
}
