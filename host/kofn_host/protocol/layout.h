/* The blocks of a gradient, and the words of a block in lanes of each width. */
#pragma once
#include <stdint.h>

#include "kofn_header.h"

enum { LANE_CODES = 5, PLANES_MOST = 7 };

/* Bits of a lane, by its code; the last code's lanes are votes. */
static const int64_t LANE_WIDTHS[LANE_CODES] = {32, 16, 8, 4, 1};

/* As BlockLayout: blocks of a gradient, and words of a block in lanes of `widest` bits; 0 summary words: no summary block;
 * planes of a sum of votes. */
struct layout {
    int64_t blocks, words, widest, summary_words, planes;
};

static inline int64_t layout_summary(const struct layout *layout) {
    return layout->summary_words ? layout->blocks : -1;
}

/* Words of a block in lanes of this code; 0: the block cannot be sent in these lanes. */
static inline int64_t layout_words(const struct layout *layout, int64_t block, int lanes) {
    if (lanes < 0 || lanes >= LANE_CODES)
        return 0;
    if (block == layout_summary(layout))
        return lanes ? 0 : layout->summary_words;
    const int64_t bits = layout->words * LANE_WIDTHS[lanes], words = bits / layout->widest;
    if (LANE_WIDTHS[lanes] > layout->widest || bits % layout->widest || (lanes == KOFN_VOTES && words > KOFN_VOTE_WORDS))
        return 0;
    return words;
}

/* Words of a block's sum; a sum of votes has planes. */
static inline int64_t layout_sum_words(const struct layout *layout, int64_t block, int lanes) {
    return layout_words(layout, block, lanes) * (lanes == KOFN_VOTES ? layout->planes : 1);
}

static inline int64_t layout_most_words(const struct layout *layout) {
    int64_t most = layout->summary_words;
    for (int lanes = 0; lanes < LANE_CODES; lanes++) {
        const int64_t words = layout_sum_words(layout, 0, lanes);
        most = words > most ? words : most;
    }
    return most;
}
