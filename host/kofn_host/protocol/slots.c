#include "slots.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "members.h"

struct slots *slots_open(int32_t workers, int32_t k, int64_t count, int32_t racks) {
    struct slots *slots = calloc(1, sizeof *slots + (size_t)count * sizeof *slots->slots);
    if (!slots)
        return NULL;
    slots->workers = slots->room = workers;
    slots->k = k;
    slots->count = count;
    slots->racks = racks;
    return slots;
}

void slots_close(struct slots *slots) {
    free(slots);
}

static int32_t k_of(const struct slots *slots, const struct header *header) {
    return header->k ? header->k : slots->k;
}

static int32_t addends_of(const struct header *header) {
    return header->count ? header->count : 1;
}

/* Whether k counted contributions still fit after this one, in a sum with `merged` contributions that do not count. A lane of a
 * tree has room for all contributions of all workers. */
static int has_room(const struct slots *slots, const struct header *header, int32_t merged) {
    return slots->racks || header->count || merged + k_of(slots, header) < slots->room;
}

/* The members of the sender's rack. */
static uint64_t *rack_of(const struct slots *slots, struct slot *slot, const struct header *header) {
    return slot->members[slots->racks ? header->worker : 0];
}

/* -- answers */

/* Answer the sender, without sums. */
static int answered(const struct slots *slots, const struct header *header, int kind, struct answer *answer) {
    answer_sender(answer, header, kind);
    answer->to = slots->racks ? TO_LEAVES : TO_WORKERS;
    return 1;
}

/* Answer the sender, without sums, and with the slot's state. */
static int told(const struct slots *slots, struct slot *slot, const struct header *header, int kind,
                struct answer *answer) {
    answered(slots, header, kind, answer);
    struct header *state = &answer->header;
    memcpy(state->members, rack_of(slots, slot, header), sizeof state->members);
    state->count = (uint16_t)slot->count;
    state->weight = slot->weight;
    state->scale = (int16_t)slot->scale;
    state->lanes = (uint8_t)slot->lanes;
    state->k = (uint16_t)k_of(slots, header);
    return 1;
}

/* Put the vote counts into the answer. Words of the packet beyond the counts stay unchanged. */
static void put_votes(struct slots *slots, const struct slot *slot, const uint8_t *values, struct answer *answer) {
    const int32_t counts = votes_planes(slots->room) * votes_bytes(slot->size);
    memcpy(slots->votes, values, (size_t)slot->size);
    memcpy(slots->votes, slot->values, (size_t)counts);
    answer->values = slots->votes;
    answer->size = counts > slot->size ? counts : slot->size;
    answer->header.words = (uint8_t)(answer->size / KOFN_WORD_BYTES);
}

/* Put the members of all racks into the answer. If the answer has a recipient, only the leaf of that recipient gets the sum. */
static void put_racks(struct slots *slots, const struct slot *slot, struct answer *answer) {
    for (int32_t rack = 0; rack < slots->racks; rack++)
        header_put_members(slot->members[rack], slots->bitmaps + rack * KOFN_MEMBERS_BYTES);
    answer->bitmaps = slots->bitmaps;
    answer->header.bitmaps = (uint8_t)slots->racks;
    if (answer->recipient != KOFN_EVERYONE)
        answer->recipient >>= 8;
}

static int summed(struct slots *slots, struct slot *slot, const struct header *header, const uint8_t *values, int kind,
                  struct answer *answer) {
    told(slots, slot, header, kind, answer);
    answer->recipient = header->recipient;
    answer->values = slot->values;
    answer->size = slot->size;
    if (slot->lanes == KOFN_VOTES)
        put_votes(slots, slot, values, answer);
    if (slots->racks)
        put_racks(slots, slot, answer);
    return 1;
}

/* Tell the sending leaf which of its rack's contributions are in the sum. If the number of missing contributions has halved, tell
 * all leaves that number. */
static int acknowledged(const struct slots *slots, struct slot *slot, const struct header *header,
                        struct answer *answer) {
    const int32_t missing = k_of(slots, header) - slot->count;
    told(slots, slot, header, KOFN_ADDED, answer);
    answer->header.words = 0;
    answer->size = 0;
    answer->recipient = header->worker;
    if (missing > slot->told / 2)
        return 1;
    slot->told = missing;
    answer->first = 0;
    answer->end = slots->racks;
    return 1;
}

static int maybe_close(struct slots *slots, struct slot *slot, const struct header *header, const uint8_t *values,
                       struct answer *answer) {
    if (slot->count < k_of(slots, header) && (slots->racks || slot->addends < slots->room))
        return slots->racks && acknowledged(slots, slot, header, answer);
    slot->done = 1;
    summed(slots, slot, header, values, KOFN_RESULT, answer);
    answer->first = 0;
    answer->end = slots->racks ? slots->racks : slots->workers;
    return 1;
}

/* -- a packet */

/* The contributions of a packet. */
static void contribution(const struct slots *slots, const struct header *header, uint64_t *these) {
    if (slots->racks) {
        memcpy(these, header->members, sizeof header->members);
        return;
    }
    memset(these, 0, sizeof header->members);
    these[header->part] = (uint64_t)1 << header->worker;
}

static void enter(const struct slots *slots, struct slot *slot, const struct header *header, const uint64_t *these) {
    members_add(rack_of(slots, slot, header), these);
    slot->count += header->count;
    slot->addends += addends_of(header);
    slot->weight += header->weight;
}

static void open_slot(const struct slots *slots, struct slot *slot, const struct header *header,
                      const uint8_t *values, int32_t size) {
    memset(slot, 0, offsetof(struct slot, values));
    slot->id = (struct block_id){header->generation, header->iteration, header->block};
    slot->told = k_of(slots, header);
    slot->scale = header->scale;
    slot->words = header->words;
    slot->lanes = header->lanes;
    slot->size = size;
    memcpy(slot->values, values, (size_t)size);
    if (header->lanes == KOFN_VOTES)
        memset(slot->values + votes_bytes(size), 0, (size_t)((votes_planes(slots->room) - 1) * votes_bytes(size)));
}

static void add(const struct slots *slots, struct slot *slot, const uint8_t *values, int32_t size) {
    if (slot->lanes == KOFN_VOTES)
        votes_add(slot->values, values, votes_bytes(slot->size), votes_planes(slots->room));
    else
        lanes_add(slot->lanes, slot->values, values, size < slot->size ? size : slot->size);
}

int slots_handle(struct slots *slots, const struct header *header, const uint8_t *values, int32_t size,
                 struct answer *answer) {
    struct slot *slot = slots->slots + header->slot % slots->count;
    const int pulls = header->kind == KOFN_PULL, order = header_compare(header, &slot->id);
    uint64_t these[KOFN_PARTS];
    contribution(slots, header, these);
    if (header->generation != slots->generation)
        return 0;
    if (order < 0)
        return answered(slots, header, KOFN_STALE, answer);
    if (order > 0) {
        if (pulls || header_is_ahead(header, &slot->id, slots->count) || !has_room(slots, header, 0))
            return 0;
        open_slot(slots, slot, header, values, size);
        enter(slots, slot, header, these);
        return maybe_close(slots, slot, header, values, answer);
    }
    if (slot->words != header->words) {
        told(slots, slot, header, KOFN_FORMAT_MISMATCH, answer);
        answer->header.flags = KOFN_OTHER_WORDS;
        return 1;
    }
    if (slot->done)
        return summed(slots, slot, header, values, KOFN_LATE, answer);
    if (pulls && !slots->racks)
        return 0;
    const uint64_t *members = rack_of(slots, slot, header);
    if (!pulls && !members_all(members, these)) {
        if (slot->scale != header->scale || slot->lanes != header->lanes)
            return told(slots, slot, header, KOFN_FORMAT_MISMATCH, answer);
        if (!has_room(slots, header, slot->addends - slot->count))
            return 0;
        if (!members_any(members, these)) {
            add(slots, slot, values, size);
            enter(slots, slot, header, these);
        }
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
