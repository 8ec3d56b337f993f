#include "history.h"

#include <stdlib.h>
#include <string.h>

int history_open(struct history *history, int64_t blocks, int64_t ahead, int64_t values, int64_t keep,
                 int64_t keep_members) {
    *history = (struct history){
        .blocks = blocks, .room = ahead + values, .ahead = ahead, .keep = keep, .keep_members = keep_members};
    return 1;
}

/* Make room for one more item at the end of a queue of items of this size, which lie in [*first, *end). */
static void *with_room(void *items, size_t size, int64_t *first, int64_t *end, int64_t *capacity) {
    if (*end < *capacity)
        return items;
    if (*first > *capacity / 2) {
        memmove(items, (char *)items + (size_t)*first * size, (size_t)(*end - *first) * size);
        *end -= *first;
        *first = 0;
        return items;
    }
    const int64_t larger = *capacity ? 2 * *capacity : 16;
    void *moved = realloc(items, (size_t)larger * size);
    if (moved)
        *capacity = larger;
    return moved;
}

uint8_t *history_buffer(struct history *history) {
    return history->unused_count ? history->unused[--history->unused_count] : malloc((size_t)history->room);
}

void history_release(struct history *history, uint8_t *buffer) {
    int64_t first = 0;
    void *unused =
        with_room(history->unused, sizeof *history->unused, &first, &history->unused_count, &history->unused_capacity);
    if (!unused) {
        free(buffer);
        return;
    }
    history->unused = unused;
    history->unused[history->unused_count++] = buffer;
}

static void release_all(struct history *history, struct iteration_results *of) {
    for (int64_t block = 0; of->known && block < history->blocks; block++)
        if (of->results[block].values) {
            history_release(history, of->results[block].values - history->ahead);
            of->known--;
        }
    free(of->results);
}

static void free_members(struct iteration_members *of) {
    free(of->blocks);
    free(of->bitmaps);
}

void history_close(struct history *history) {
    for (int64_t at = history->first; at < history->end; at++)
        release_all(history, history->whole + at);
    for (int64_t at = history->members_first; at < history->members_end; at++)
        free_members(history->members + at);
    while (history->unused_count)
        free(history->unused[--history->unused_count]);
    free(history->unused);
    free(history->whole);
    free(history->members);
}

/* The place among the complete results where an iteration is, or would be. */
static int64_t whole_place(const struct history *history, int64_t iteration) {
    int64_t place = history->end;
    while (place > history->first && history->whole[place - 1].iteration >= iteration)
        place--;
    return place;
}

struct iteration_results *history_find(const struct history *history, int64_t iteration) {
    const int64_t place = whole_place(history, iteration);
    struct iteration_results *found = history->whole + place;
    return place < history->end && found->iteration == iteration ? found : NULL;
}

struct iteration_results *history_of(struct history *history, int64_t iteration) {
    struct iteration_results *known = history_find(history, iteration);
    if (known)
        return known;
    void *whole = with_room(history->whole, sizeof *history->whole, &history->first, &history->end, &history->capacity);
    struct result *results = calloc((size_t)history->blocks, sizeof *results);
    if (!whole || !results)
        return free(results), NULL;
    history->whole = whole;
    const int64_t place = whole_place(history, iteration);
    memmove(history->whole + place + 1, history->whole + place, (size_t)(history->end - place) * sizeof *history->whole);
    history->end++;
    history->whole[place] = (struct iteration_results){.iteration = iteration, .results = results};
    return history->whole + place;
}

static int bytes_of(const uint64_t *members) {
    for (int word = MEMBER_WORDS - 1; word >= 0; word--)
        if (members[word])
            return 8 * word + (71 - __builtin_clzll(members[word])) / 8;
    return 0;
}

/* Keep the members of an iteration's results. */
static int keep_members_of(struct history *history, const struct iteration_results *of) {
    struct iteration_members kept = {.iteration = of->iteration, .count = of->known};
    int64_t last = 0;
    for (int64_t block = 0; block < history->blocks; block++)
        if (of->results[block].values) {
            const int size = bytes_of(of->results[block].members);
            kept.size = size > kept.size ? size : kept.size;
            last = block;
        }
    void *members = with_room(history->members, sizeof *history->members, &history->members_first,
                              &history->members_end, &history->members_capacity);
    if (members)
        history->members = members;
    kept.bitmaps = malloc((size_t)(kept.count * kept.size));
    kept.blocks = last == kept.count - 1 ? NULL : malloc((size_t)kept.count * sizeof *kept.blocks);
    if (!members || !kept.bitmaps || (last != kept.count - 1 && !kept.blocks))
        return free_members(&kept), 0;
    for (int64_t block = 0, at = 0; block < history->blocks; block++)
        if (of->results[block].values) {
            memcpy(kept.bitmaps + at * kept.size, of->results[block].members, (size_t)kept.size);
            if (kept.blocks)
                kept.blocks[at] = (uint32_t)block;
            at++;
        }
    history->members[history->members_end++] = kept;
    return 1;
}

int history_forget(struct history *history, int64_t iteration, int64_t keep) {
    int remembered = 1;
    for (; history->first < history->end && history->whole[history->first].iteration < iteration - keep; history->first++) {
        struct iteration_results *old = history->whole + history->first;
        remembered &= !old->known || keep_members_of(history, old);
        release_all(history, old);
    }
    for (; history->members_first < history->members_end &&
           history->members[history->members_first].iteration < iteration - history->keep_members;
         history->members_first++)
        free_members(history->members + history->members_first);
    return remembered;
}

/* The first place among the members whose iteration is this one or later. */
static int64_t members_place(const struct history *history, int64_t iteration) {
    int64_t low = history->members_first, high = history->members_end;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (history->members[middle].iteration < iteration)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t history_next(const struct history *history, int64_t iteration) {
    const int64_t old = members_place(history, iteration);
    if (old < history->members_end)
        return history->members[old].iteration;
    for (int64_t at = history->first; at < history->end; at++)
        if (history->whole[at].iteration >= iteration && history->whole[at].known)
            return history->whole[at].iteration;
    return -1;
}

static const struct iteration_members *find_members(const struct history *history, int64_t iteration) {
    const int64_t place = members_place(history, iteration);
    const struct iteration_members *found = history->members + place;
    return place < history->members_end && found->iteration == iteration ? found : NULL;
}

/* An old result has its members only. */
static struct result old_result(const struct iteration_members *of, int64_t at) {
    struct result result = {0};
    memcpy(result.members, of->bitmaps + at * of->size, (size_t)of->size);
    return result;
}

static uint32_t old_block(const struct iteration_members *of, int64_t at) {
    return of->blocks ? of->blocks[at] : (uint32_t)at;
}

int64_t history_read(const struct history *history, int64_t iteration, uint32_t *blocks, struct result *results) {
    const struct iteration_members *old = find_members(history, iteration);
    const struct iteration_results *whole = history_find(history, iteration);
    int64_t count = 0;
    for (; old && count < old->count; count++) {
        blocks[count] = old_block(old, count);
        results[count] = old_result(old, count);
    }
    for (int64_t block = 0; whole && block < history->blocks; block++)
        if (whole->results[block].values) {
            blocks[count] = (uint32_t)block;
            results[count++] = whole->results[block];
        }
    return count;
}

struct result history_result(const struct history *history, int64_t iteration, int64_t block) {
    const struct iteration_results *whole = history_find(history, iteration);
    const struct iteration_members *old = whole ? NULL : find_members(history, iteration);
    if (whole)
        return whole->results[block];
    for (int64_t at = 0; old && at < old->count; at++)
        if (old_block(old, at) == block)
            return old_result(old, at);
    return (struct result){0};
}
