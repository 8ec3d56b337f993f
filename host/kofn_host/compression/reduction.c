#include "reduction.h"

#include <stdlib.h>
#include <string.h>

static int64_t at_most(int64_t number, int64_t limit) {
    return number < limit ? number : limit;
}

/* -- out */

/* Whether a block is complete. Another thread stores a block's elements first and decreases `missing` afterwards, so 0 means
 * that all elements are there. */
static int is_there(const struct reduction *reduction, int64_t at) {
    return __atomic_load_n(&reduction->missing[reduction->left[at]], __ATOMIC_ACQUIRE) == 0;
}

static int64_t level_of(const struct reduction *reduction, int64_t at) {
    return reduction->level[reduction->left[at]];
}

/* The number of remaining blocks that are less than `window` blocks after the first remaining block. A later block may have to
 * wait until the first one has closed: such blocks would fill the lookahead, and the first remaining block could not be
 * encoded. */
static int64_t near(const struct reduction *reduction) {
    const int64_t *left = reduction->left + reduction->first, count = reduction->end - reduction->first;
    int64_t found = 0;
    while (found < count && left[found] < left[0] + reduction->window)
        found++;
    return found;
}

/* Insert a place into `places`, which are ordered by level and number; drop the last place if there are more than `most`. */
static int64_t insert(const struct reduction *reduction, int64_t place, int64_t *places, int64_t count, int64_t most) {
    int64_t at = count;
    while (at && level_of(reduction, places[at - 1]) < level_of(reduction, place))
        at--;
    if (at == most)
        return count;
    count += count < most;
    memmove(places + at + 1, places + at, (size_t)(count - at - 1) * sizeof *places);
    places[at] = place;
    return count;
}

static int by_number(const void *first, const void *second) {
    const int64_t left = *(const int64_t *)first, right = *(const int64_t *)second;
    return (left > right) - (left < right);
}

/* Choose the complete blocks with the highest levels; `places` gets them, ascending. Returns their number. */
static int64_t ready_places(const struct reduction *reduction, int64_t most, int64_t *places) {
    const int64_t end = reduction->first + near(reduction);
    int64_t count = 0;
    for (int64_t at = reduction->first; at < end; at++)
        if (is_there(reduction, at))
            count = insert(reduction, at, places, count, most);
    qsort(places, (size_t)count, sizeof *places, by_number);
    return count;
}

/* Take the next blocks out of the remaining ones, ascending; returns their number. */
static int64_t choose(struct reduction *reduction, int64_t most, int64_t *blocks) {
    int64_t *left = reduction->left, places[REDUCED_AT_ONCE];
    if (!reduction->missing) {
        const int64_t count = at_most(most, reduction->end - reduction->first);
        memcpy(blocks, left + reduction->first, (size_t)count * sizeof *blocks);
        reduction->first += count;
        return count;
    }
    const int64_t count = ready_places(reduction, most, places);
    int64_t taken = count;
    for (int64_t at = count ? places[count - 1] : -1; at >= reduction->first; at--)
        if (taken && places[taken - 1] == at)
            blocks[--taken] = left[at];
        else
            left[at + count - taken] = left[at]; /* move up over the taken blocks */
    reduction->first += count;
    return count;
}

/* Add the encoding error of every `sample_stride`-th block to the sample. */
static void look(struct reduction *reduction, int64_t block) {
    if (reduction->encoded++ % reduction->sample_stride)
        return;
    ledger_left_over(reduction->ledger, reduction->iteration, &block, 1, reduction->scratch);
    double sum = 0;
    for (int64_t i = 0; i < reduction->ledger->lanes; i++)
        sum += (double)reduction->scratch[i] * (double)reduction->scratch[i];
    reduction->error += sum;
    reduction->looked_at++;
}

/* Enter, encode and record blocks. */
static void encode(struct reduction *reduction, const int64_t *blocks, int64_t count, struct packed *ready) {
    const struct gradient *gradient = reduction->gradient.values ? &reduction->gradient : NULL;
    ledger_send(reduction->ledger, gradient, reduction->iteration, 0, (int)reduction->lanes, blocks, count, reduction->scale);
    ledger_noted(reduction->ledger, 0, blocks, count, ready);
    for (int64_t at = 0; at < count; at++)
        look(reduction, blocks[at]);
}

int64_t reduction_next(struct reduction *reduction, struct packed *ready, int64_t most) {
    int64_t blocks[REDUCED_AT_ONCE];
    const double begin_s = clock_s();
    if (reduction->first == reduction->end) {
        const int64_t count = reduction->last != NULL;
        if (count)
            *ready = *reduction->last;
        reduction->last = NULL;
        return count;
    }
    const int64_t count = choose(reduction, at_most(most, REDUCED_AT_ONCE), blocks);
    encode(reduction, blocks, count, ready);
    reduction->encode_s += clock_s() - begin_s;
    return count;
}

/* -- in */

int reduction_closed(struct reduction *reduction, const int64_t *blocks, const struct result *results, int64_t count) {
    const double begin_s = clock_s();
    int64_t parts[REDUCED_AT_ONCE];
    for (int64_t at = 0; at < count; at++)
        parts[at] = result_parts(results + at, reduction->place);
    if (ledger_settle(reduction->ledger, reduction->iteration, blocks, parts, count, reduction->fading, NULL) >= 0)
        return 0;
    const double settled_s = clock_s();
    reduction->settle_s += settled_s - begin_s;
    int good = 1;
    for (int64_t at = 0; at < count; at++)
        if (blocks[at] < reduction->ledger->blocks) /* else the summary block */
            good &= sums_take(reduction->sums, blocks + at, results + at, 1, reduction->mean) < 0;
    reduction->average_s += clock_s() - settled_s;
    return good;
}
