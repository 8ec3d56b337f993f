#include "slots.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct slots *slots_open(int32_t workers, int32_t k, int64_t count) {
    struct slots *slots = calloc(1, sizeof *slots + (size_t)count * sizeof *slots->slots);
    if (!slots)
        return NULL;
    slots->workers = slots->room = workers;
    slots->k = k;
    slots->count = count;
    return slots;
}

void slots_close(struct slots *slots) {
    free(slots);
}

/* -- lanes: big-endian numbers; sums wrap around */

static void add32(uint32_t *sum, const uint32_t *values, int32_t count) {
    for (int32_t at = 0; at < count; at++)
        sum[at] = __builtin_bswap32(__builtin_bswap32(sum[at]) + __builtin_bswap32(values[at]));
}

static void add16(uint16_t *sum, const uint16_t *values, int32_t count) {
    for (int32_t at = 0; at < count; at++)
        sum[at] = __builtin_bswap16((uint16_t)(__builtin_bswap16(sum[at]) + __builtin_bswap16(values[at])));
}

static void add8(uint8_t *sum, const uint8_t *values, int32_t count) {
    for (int32_t at = 0; at < count; at++)
        sum[at] = (uint8_t)(sum[at] + values[at]);
}

static void add4(uint8_t *sum, const uint8_t *values, int32_t count) {
    for (int32_t at = 0; at < count; at++)
        sum[at] = (uint8_t)(((sum[at] & 0xF0) + (values[at] & 0xF0)) | ((sum[at] + values[at]) & 15));
}

/* -- votes: one bit per element; plane p has bit p of all counts, one plane after another */

static int32_t vote_bytes(int32_t size) {
    return size < KOFN_VOTE_WORDS * KOFN_WORD_BYTES ? size : KOFN_VOTE_WORDS * KOFN_WORD_BYTES;
}

static int32_t planes_of(int32_t room) {
    return room ? 32 - __builtin_clz((uint32_t)room) : 0;
}

static void add_votes(uint8_t *planes, const uint8_t *values, int32_t size, int32_t count) {
    for (int32_t at = 0; at < size; at++) {
        uint8_t carry = values[at];
        for (int32_t plane = 0; plane < count; plane++) {
            uint8_t *bits = planes + plane * size + at, old = *bits;
            *bits = old ^ carry;
            carry &= old;
        }
    }
}

static void add(struct slot *slot, const uint8_t *values, int32_t size, int32_t planes) {
    const int32_t common = size < slot->size ? size : slot->size;
    if (slot->lanes == KOFN_VOTES)
        add_votes(slot->values, values, vote_bytes(slot->size), planes);
    else if (slot->lanes == 0)
        add32((uint32_t *)slot->values, (const uint32_t *)values, common / 4);
    else if (slot->lanes == 1)
        add16((uint16_t *)slot->values, (const uint16_t *)values, common / 2);
    else if (slot->lanes == 2)
        add8(slot->values, values, common);
    else
        add4(slot->values, values, common);
}

/* -- a packet */

static int compare(const struct header *header, const struct slot *slot) {
    const uint32_t given[] = {header->generation, header->iteration, header->block};
    const uint32_t known[] = {slot->generation, slot->iteration, slot->block};
    for (int at = 0; at < 3; at++)
        if (given[at] != known[at])
            return given[at] < known[at] ? -1 : 1;
    return 0;
}

static int32_t k_of(const struct slots *slots, const struct header *header) {
    return header->k ? header->k : slots->k;
}

static int32_t addends_of(const struct header *header) {
    return header->count ? header->count : 1;
}

/* Whether k counted contributions still fit after this one, in a sum with `merged` that do not count. */
static int has_room(const struct slots *slots, const struct header *header, int32_t merged) {
    return header->count || merged + k_of(slots, header) < slots->room;
}

/* Answer the sender, without sums. */
static int answered(const struct slots *slots, const struct header *header, int kind, struct answer *answer) {
    answer->header = *header;
    answer->header.kind = (uint8_t)kind;
    answer->values = slots->zeros;
    answer->size = header->words * KOFN_WORD_BYTES;
    answer->first = header->worker;
    answer->end = header->worker + 1;
    answer->recipient = KOFN_EVERYONE;
    return 1;
}

/* The same, with the slot's state. */
static int told(const struct slots *slots, const struct slot *slot, const struct header *header, int kind,
                struct answer *answer) {
    answered(slots, header, kind, answer);
    struct header *state = &answer->header;
    memcpy(state->members, slot->members, sizeof state->members);
    state->count = (uint8_t)slot->count;
    state->weight = slot->weight;
    state->scale = (int16_t)slot->scale;
    state->lanes = (uint8_t)slot->lanes;
    state->k = (uint16_t)k_of(slots, header);
    return 1;
}

/* Put the counts into the answer; words of the packet that they do not fill stay unchanged. */
static void put_votes(struct slots *slots, const struct slot *slot, const uint8_t *values, struct answer *answer) {
    const int32_t counts = planes_of(slots->room) * vote_bytes(slot->size);
    memcpy(slots->votes, values, (size_t)slot->size);
    memcpy(slots->votes, slot->values, (size_t)counts);
    answer->values = slots->votes;
    answer->size = counts > slot->size ? counts : slot->size;
    answer->header.words = (uint8_t)(answer->size / KOFN_WORD_BYTES);
}

static int summed(struct slots *slots, const struct slot *slot, const struct header *header, const uint8_t *values,
                  int kind, struct answer *answer) {
    told(slots, slot, header, kind, answer);
    answer->recipient = header->recipient;
    answer->values = slot->values;
    answer->size = slot->size;
    if (slot->lanes == KOFN_VOTES)
        put_votes(slots, slot, values, answer);
    return 1;
}

static int maybe_close(struct slots *slots, struct slot *slot, const struct header *header, const uint8_t *values,
                       struct answer *answer) {
    if (slot->count < k_of(slots, header) && slot->addends < slots->room)
        return 0;
    slot->done = 1;
    summed(slots, slot, header, values, KOFN_RESULT, answer);
    answer->first = 0;
    answer->end = slots->workers;
    return 1;
}

static void enter(struct slot *slot, const struct header *header) {
    slot->members[header->part] |= (uint64_t)1 << header->worker;
    slot->count += header->count;
    slot->addends += addends_of(header);
    slot->weight += header->weight;
}

static void open_slot(struct slot *slot, const struct header *header, const uint8_t *values, int32_t size,
                      int32_t planes) {
    memset(slot, 0, offsetof(struct slot, values));
    slot->generation = header->generation;
    slot->iteration = header->iteration;
    slot->block = header->block;
    slot->scale = header->scale;
    slot->words = header->words;
    slot->lanes = header->lanes;
    slot->size = size;
    memcpy(slot->values, values, (size_t)size);
    if (header->lanes == KOFN_VOTES)
        memset(slot->values + vote_bytes(size), 0, (size_t)((planes - 1) * vote_bytes(size)));
    enter(slot, header);
}

int slots_handle(struct slots *slots, const struct header *header, const uint8_t *values, int32_t size,
                 struct answer *answer) {
    struct slot *slot = slots->slots + header->slot % slots->count;
    const int pulls = header->kind == KOFN_PULL, order = compare(header, slot);
    if (header->generation != slots->generation)
        return 0;
    if (order < 0)
        return answered(slots, header, KOFN_STALE, answer);
    if (order > 0) {
        if (pulls || !has_room(slots, header, 0))
            return 0;
        open_slot(slot, header, values, size, planes_of(slots->room));
        return maybe_close(slots, slot, header, values, answer);
    }
    if (slot->words != header->words) {
        told(slots, slot, header, KOFN_FORMAT_MISMATCH, answer);
        answer->header.flags = KOFN_OTHER_WORDS;
        return 1;
    }
    if (slot->done)
        return summed(slots, slot, header, values, KOFN_LATE, answer);
    if (pulls)
        return 0;
    if (!(slot->members[header->part] >> header->worker & 1)) {
        if (slot->scale != header->scale || slot->lanes != header->lanes)
            return told(slots, slot, header, KOFN_FORMAT_MISMATCH, answer);
        if (!has_room(slots, header, slot->addends - slot->count))
            return 0;
        add(slot, values, size, planes_of(slots->room));
        enter(slot, header);
    }
    return maybe_close(slots, slot, header, values, answer);
}

const uint8_t *slots_put(struct slots *slots, const uint8_t *header, const uint8_t *values, int32_t size,
                         uint8_t *answer, int32_t *to) {
    const struct header read = header_read(header);
    struct answer found;
    if (!slots_handle(slots, &read, values, size, &found))
        return NULL;
    header_write(&found.header, answer);
    to[0] = found.size;
    to[1] = found.first;
    to[2] = found.end;
    to[3] = found.recipient;
    return found.values;
}
