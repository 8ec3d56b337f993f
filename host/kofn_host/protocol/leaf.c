#include "leaf.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "members.h"

enum { NOBODY = -1 };

static const uint64_t NONE[KOFN_PARTS];

struct leaf *leaf_open(int32_t rack, int32_t workers, int64_t count) {
    struct leaf *leaf = calloc(1, sizeof *leaf + (size_t)count * sizeof *leaf->slots);
    if (!leaf)
        return NULL;
    leaf->rack = rack;
    leaf->workers = workers;
    leaf->count = count;
    return leaf;
}

void leaf_close(struct leaf *leaf) {
    free(leaf);
}

static struct leaf_slot *slot_of(struct leaf *leaf, const struct header *header) {
    return leaf->slots + header->slot % leaf->count;
}

static struct increment *open_buffer(struct leaf_slot *slot) {
    return slot->buffers + slot->open;
}

static struct increment *sent_buffer(struct leaf_slot *slot) {
    return slot->buffers + !slot->open;
}

static void empty(struct increment *buffer) {
    memset(buffer, 0, offsetof(struct increment, values));
}

static int is_empty(const struct increment *buffer) {
    return members_all(NONE, buffer->members);
}

/* -- answers to a worker */

static int replied(const struct leaf *leaf, const struct header *header, int kind, struct answer *answer) {
    answer_sender(answer, header, kind);
    answer->header.rack = (uint8_t)leaf->rack;
    return 1;
}

static int refused(const struct leaf *leaf, const struct leaf_slot *slot, const struct header *header,
                   struct answer *answer) {
    replied(leaf, header, KOFN_FORMAT_MISMATCH, answer);
    answer->header.scale = (int16_t)slot->scale;
    answer->header.lanes = (uint8_t)slot->lanes;
    memcpy(answer->header.members, slot->taken, sizeof slot->taken);
    return 1;
}

/* Put the result into the answer; if the sum has a recipient, only that worker gets the values. */
static void put_result(const struct leaf *leaf, const struct leaf_slot *slot, struct answer *answer) {
    const int32_t recipient = answer->header.recipient;
    answer->header.rack = (uint8_t)leaf->rack;
    answer->bitmaps = slot->bitmaps;
    answer->values = slot->buffers[0].values;
    answer->size = slot->result.words * KOFN_WORD_BYTES;
    answer->recipient = recipient == KOFN_EVERYONE       ? recipient
                        : recipient >> 8 == leaf->rack ? recipient & 255
                                                       : NOBODY;
}

static int late(const struct leaf *leaf, const struct leaf_slot *slot, const struct header *header,
                struct answer *answer) {
    const struct header *result = &slot->result;
    answer_sender(answer, header, KOFN_LATE);
    memcpy(answer->header.members, result->members, sizeof result->members);
    answer->header.count = result->count;
    answer->header.weight = result->weight;
    answer->header.k = result->k;
    answer->header.scale = result->scale;
    answer->header.lanes = result->lanes;
    answer->header.words = result->words;
    answer->header.bitmaps = result->bitmaps;
    put_result(leaf, slot, answer);
    return 1;
}

/* -- packets to the root */

static int sent_up(const struct leaf *leaf, const struct header *header, int kind, const uint8_t *values,
                   struct answer *answer) {
    answer_sender(answer, header, kind);
    answer->header.worker = answer->header.rack = (uint8_t)leaf->rack;
    answer->to = TO_ROOT;
    if (values)
        answer->values = values;
    return 1;
}

/* Send the latest increment. */
static int sent(const struct leaf *leaf, struct leaf_slot *slot, const struct header *header, struct answer *answer) {
    const struct increment *increment = sent_buffer(slot);
    sent_up(leaf, header, KOFN_CONTRIBUTE, increment->values, answer);
    memcpy(answer->header.members, increment->members, sizeof increment->members);
    answer->header.count = (uint16_t)increment->count;
    answer->header.weight = increment->weight;
    answer->header.part = 0;
    answer->header.scale = (int16_t)slot->scale;
    answer->header.lanes = (uint8_t)slot->lanes;
    return 1;
}

/* Send the open buffer. */
static int freeze(const struct leaf *leaf, struct leaf_slot *slot, const struct header *header, struct answer *answer) {
    slot->open = !slot->open;
    slot->last = 0;
    empty(open_buffer(slot));
    return sent(leaf, slot, header, answer);
}

static int has_format(const struct leaf_slot *slot, const struct header *header) {
    return slot->scale == header->scale && slot->words == header->words && slot->lanes == header->lanes;
}

/* Send one packet to the root because a worker has repeated its packet; `mine`: that packet's contribution if the slot has taken
 * it, else none. */
static int urged(const struct leaf *leaf, struct leaf_slot *slot, const struct header *header, const uint8_t *values,
                 const uint64_t *mine, struct answer *answer) {
    const struct increment *open = open_buffer(slot), *latest = sent_buffer(slot);
    const int is_held = members_any(slot->acked, mine) || members_any(open->members, mine) ||
                        members_any(latest->members, mine);
    if (!members_all(NONE, mine) && !is_held) {
        sent_up(leaf, header, header->kind, values, answer);
        memcpy(answer->header.members, mine, sizeof answer->header.members);
        return 1;
    }
    const int has_room = slot->words == header->words;
    if (has_room && !is_empty(latest))
        return sent(leaf, slot, header, answer);
    if (has_room && !is_empty(open))
        return freeze(leaf, slot, header, answer);
    return sent_up(leaf, header, KOFN_PULL, NULL, answer);
}

/* -- a packet of a worker */

static void open_slot(const struct leaf *leaf, struct leaf_slot *slot, const struct header *header) {
    memset(slot, 0, offsetof(struct leaf_slot, result));
    slot->id = (struct block_id){header->generation, header->iteration, header->block};
    slot->phase = OPEN;
    slot->scale = header->scale;
    slot->words = header->words;
    slot->lanes = header->lanes;
    slot->missing = header->k ? header->k : leaf->k;
    empty(slot->buffers);
    empty(slot->buffers + 1);
}

static void add(struct leaf_slot *slot, const struct header *header, const uint8_t *values, int32_t size,
                const uint64_t *mine) {
    struct increment *open = open_buffer(slot);
    if (is_empty(open))
        memcpy(open->values, values, (size_t)size);
    else
        lanes_add(slot->lanes, open->values, values, size);
    members_add(open->members, mine);
    members_add(slot->taken, mine);
    open->count += header->count;
    open->weight += header->weight;
    slot->last = 1 + header->worker;
}

/* Whether the open buffer has at least as many contributions as the root still misses, shifted right by `shift`. */
static int is_due(const struct leaf *leaf, struct leaf_slot *slot) {
    const int32_t count = open_buffer(slot)->count;
    return leaf->shift && count && count >= slot->missing >> leaf->shift;
}

/* Whether the open buffer leaves. */
static int is_enough(const struct leaf *leaf, struct leaf_slot *slot, const struct header *header) {
    const uint64_t everyone = ~(uint64_t)0 >> (64 - leaf->workers);
    return (slot->taken[0] & everyone) == everyone || (header->k && open_buffer(slot)->count >= header->k) ||
           is_due(leaf, slot);
}

int leaf_below(struct leaf *leaf, const struct header *header, const uint8_t *values, int32_t size,
               struct answer *answer) {
    struct leaf_slot *slot = slot_of(leaf, header);
    const int pulls = header->kind == KOFN_PULL, order = header_compare(header, &slot->id);
    uint64_t mine[KOFN_PARTS] = {0};
    mine[header->part] = (uint64_t)1 << header->worker;
    if (header->generation != leaf->generation)
        return 0;
    if (order < 0)
        return replied(leaf, header, KOFN_STALE, answer);
    if (order > 0 && pulls)
        return sent_up(leaf, header, KOFN_PULL, NULL, answer);
    if (header_is_ahead(header, &slot->id, leaf->count) && !(header->flags & KOFN_AGAIN))
        return 0;
    if (order > 0)
        open_slot(leaf, slot, header);
    const int settled = slot->phase == DONE || slot->confirmed || slot->lanes == header->lanes;
    if (slot->words != header->words && settled && !(slot->phase == DONE && !slot->words)) {
        refused(leaf, slot, header, answer);
        answer->header.flags = KOFN_OTHER_WORDS;
        return 1;
    }
    if (slot->phase == DONE)
        return late(leaf, slot, header, answer);
    if (slot->phase == GONE)
        return replied(leaf, header, KOFN_STALE, answer);
    if (pulls || members_any(slot->taken, mine))
        return urged(leaf, slot, header, values, pulls ? NONE : mine, answer);
    if (!has_format(slot, header))
        return slot->confirmed ? refused(leaf, slot, header, answer) : urged(leaf, slot, header, values, NONE, answer);
    add(slot, header, values, size, mine);
    return is_enough(leaf, slot, header) && freeze(leaf, slot, header, answer);
}

/* -- a packet of the root */

static int close_slot(struct leaf *leaf, struct leaf_slot *slot, const struct header *header, const uint8_t *body,
                      int32_t size, struct answer *answer) {
    const int32_t bitmaps = header->bitmaps * KOFN_MEMBERS_BYTES;
    memset(slot, 0, offsetof(struct leaf_slot, result));
    slot->id = (struct block_id){header->generation, header->iteration, header->block};
    slot->phase = DONE;
    slot->scale = header->scale;
    slot->words = header->words;
    slot->lanes = header->lanes;
    slot->result = *header;
    header_members(body + leaf->rack * KOFN_MEMBERS_BYTES, slot->result.members);
    memcpy(slot->bitmaps, body, (size_t)bitmaps);
    memcpy(slot->buffers[0].values, body + bitmaps, (size_t)(size - bitmaps));
    answer_sender(answer, &slot->result, KOFN_RESULT);
    put_result(leaf, slot, answer);
    answer->first = 0;
    answer->end = leaf->workers;
    return 1;
}

/* Begin again in the root's format: the root has added nothing in the slot's format. */
static void begin_again(struct leaf_slot *slot, const struct header *header) {
    const int32_t words = slot->words << slot->lanes & 255; /* half as many in lanes half as wide */
    slot->words = words >> header->lanes;
    slot->scale = header->scale;
    slot->lanes = header->lanes;
    memcpy(slot->taken, header->members, sizeof slot->taken);
    memcpy(slot->acked, header->members, sizeof slot->acked);
    slot->last = 0;
    empty(slot->buffers);
    empty(slot->buffers + 1);
}

/* Learn which of the rack's contributions are in the root's sum, and the format of that sum. */
static void hear(struct leaf_slot *slot, const struct header *header) {
    slot->confirmed = 1;
    slot->missing = header->k > header->count ? header->k - header->count : 0;
    if (slot->scale != header->scale || slot->lanes != header->lanes) {
        begin_again(slot, header);
        return;
    }
    members_add(slot->acked, header->members);
    members_add(slot->taken, header->members);
    for (struct increment *buffer = slot->buffers; buffer < slot->buffers + 2; buffer++)
        if (members_any(buffer->members, slot->acked)) {
            members_remove(buffer->members, slot->acked);
            members_remove(slot->taken, buffer->members);
            empty(buffer);
        }
}

/* If the open buffer is due now, ask the worker that sent the buffer's latest contribution to repeat this contribution, so that
 * the buffer leaves. */
static int tell_last(const struct leaf *leaf, struct leaf_slot *slot, const struct header *header, struct answer *answer) {
    const int32_t last = slot->last;
    if (!last || is_empty(open_buffer(slot)) || !is_empty(sent_buffer(slot)) || !is_due(leaf, slot))
        return 0;
    slot->last = 0;
    replied(leaf, header, KOFN_ADDED, answer);
    answer->first = last - 1;
    answer->end = last;
    answer->header.words = 0;
    answer->size = 0;
    return 1;
}

int leaf_above(struct leaf *leaf, const struct header *header, const uint8_t *body, int32_t size,
               struct answer *answer) {
    struct leaf_slot *slot = slot_of(leaf, header);
    const int order = header_compare(header, &slot->id);
    const int results = header->kind == KOFN_RESULT || header->kind == KOFN_LATE;
    if (header->generation != leaf->generation || order < 0)
        return 0;
    if (results)
        return (order > 0 || slot->phase != DONE) && close_slot(leaf, slot, header, body, size, answer);
    if (order > 0 || slot->phase != OPEN)
        return 0;
    if (header->kind == KOFN_STALE) {
        slot->phase = GONE;
        return 0;
    }
    hear(slot, header);
    return tell_last(leaf, slot, header, answer);
}
