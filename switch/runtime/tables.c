// The control plane's changes of tables; each is one step for packets.
#include <string.h>

#include "core.h"
#include "table.h"

static uint64_t *parameters_of(const struct table *table, struct entry *entry) {
    return entry->limbs + table->shape.stored_limbs;
}

static void write_action(struct table *table, struct entry *entry, uint32_t action, const uint64_t *parameters) {
    entry->action = action;
    memcpy(parameters_of(table, entry), parameters, 8 * (size_t)table->shape.parameter_limbs);
}

static void link_exact(struct table *table, uint32_t number) {
    uint32_t at = hash_key(entry_at(table, number)->limbs, table->shape.key_limbs) & table->index_mask;
    while (table->index[at] != 0) at = (at + 1) & table->index_mask;
    table->index[at] = number + 1;
}

// Close the gap, so that no look-up stops early.
static void unlink_exact(struct table *table, uint32_t number) {
    uint32_t mask = table->index_mask;
    uint32_t gap = hash_key(entry_at(table, number)->limbs, table->shape.key_limbs) & mask;
    while (table->index[gap] != number + 1) gap = (gap + 1) & mask;
    for (uint32_t at = (gap + 1) & mask; table->index[at] != 0; at = (at + 1) & mask) {
        uint32_t home = hash_key(entry_at(table, table->index[at] - 1)->limbs, table->shape.key_limbs) & mask;
        if (((at - home) & mask) < ((at - gap) & mask)) continue;
        table->index[gap] = table->index[at];
        gap = at;
    }
    table->index[gap] = 0;
}

// Masks stay in the order of their bounds.
static void move_mask(struct table *table, uint32_t place) {
    uint32_t number = table->mask_order[place];
    uint64_t bound = mask_at(table, number)->bound;
    for (; place > 0 && mask_at(table, table->mask_order[place - 1])->bound > bound; place--)
        table->mask_order[place] = table->mask_order[place - 1];
    table->mask_order[place] = number;
}

static uint32_t place_of(const struct table *table, uint32_t number) {
    uint32_t place = 0;
    while (table->mask_order[place] != number) place++;
    return place;
}

// One more entry of rank `rank` has this mask. The bound is not raised again before the last of the mask's entries is
// gone: a bound that is too good costs a probe, never an entry.
static void use_mask(struct table *table, uint32_t number, const uint64_t *limbs, uint64_t rank) {
    struct mask *mask = mask_at(table, number);
    if (mask->entries++ == 0) {
        memcpy(mask->limbs, limbs, 8 * (size_t)table->shape.key_limbs);
        mask->bound = rank;
        table->mask_order[table->masks_used] = number;
        move_mask(table, table->masks_used++);
    } else if (rank < mask->bound) {
        mask->bound = rank;
        move_mask(table, place_of(table, number));
    }
}

static void leave_mask(struct table *table, uint32_t number) {
    if (--mask_at(table, number)->entries > 0) return;
    uint32_t place = place_of(table, number);
    table->masks_used--;
    memmove(table->mask_order + place, table->mask_order + place + 1,
            (table->masks_used - place) * sizeof *table->mask_order);
}

// The chain that an entry belongs to: the hash of its key under its mask.
static uint32_t *chain_of(struct table *table, struct entry *entry, const struct mask *mask) {
    uint32_t limbs = table->shape.key_limbs;
    uint64_t masked[limbs];
    for (uint32_t i = 0; i < limbs; i++) masked[i] = entry->limbs[i] & mask->limbs[i];
    return &table->index[hash_key(masked, limbs) & table->index_mask];
}

static void link_ordered(struct table *table, uint32_t number, const struct mask *mask) {
    uint32_t limbs = table->shape.key_limbs;
    struct entry *entry = entry_at(table, number), *before = NULL;
    uint32_t *chain = chain_of(table, entry, mask);
    uint64_t at = *chain;
    for (; at != 0 && *rank_of(entry_at(table, (uint32_t)at - 1), limbs) < *rank_of(entry, limbs);
         at = *next_of(before, limbs))
        before = entry_at(table, (uint32_t)at - 1);
    *next_of(entry, limbs) = at;
    if (before)
        *next_of(before, limbs) = number + 1;
    else
        *chain = number + 1;
}

static void unlink_ordered(struct table *table, uint32_t number, const struct mask *mask) {
    uint32_t limbs = table->shape.key_limbs;
    struct entry *entry = entry_at(table, number), *before = NULL;
    uint32_t *chain = chain_of(table, entry, mask);
    for (uint64_t at = *chain; at != number + 1; at = *next_of(before, limbs))
        before = entry_at(table, (uint32_t)at - 1);
    if (before)
        *next_of(before, limbs) = *next_of(entry, limbs);
    else
        *chain = (uint32_t)*next_of(entry, limbs);
}

// Put an entry into the free place `number`. An ordered table's has a mask: its number, and the limbs that a key is
// masked with, which are zero for range fields.
void table_insert(struct core *core, struct instance *instance, uint32_t id, uint32_t number, uint32_t mask,
                  const uint64_t *mask_limbs, const uint64_t *match, uint32_t action, const uint64_t *parameters) {
    core_lock(core);
    struct table *table = &instance->tables[id];
    struct entry *entry = entry_at(table, number);
    memset(entry, 0, table->stride);
    memcpy(entry->limbs, match, 8 * (size_t)table->shape.stored_limbs);
    write_action(table, entry, action, parameters);
    if (table->shape.kind == TABLE_EXACT) {
        link_exact(table, number);
    } else {
        use_mask(table, mask, mask_limbs, *rank_of(entry, table->shape.key_limbs));
        link_ordered(table, number, mask_at(table, mask));
    }
    table->used++;
    core_unlock(core);
}

void table_modify(struct core *core, struct instance *instance, uint32_t id, uint32_t number, uint32_t action,
                  const uint64_t *parameters) {
    core_lock(core);
    write_action(&instance->tables[id], entry_at(&instance->tables[id], number), action, parameters);
    core_unlock(core);
}

void table_delete(struct core *core, struct instance *instance, uint32_t id, uint32_t number, uint32_t mask) {
    core_lock(core);
    struct table *table = &instance->tables[id];
    table->used--;
    if (table->shape.kind == TABLE_EXACT) {
        unlink_exact(table, number);
    } else {
        unlink_ordered(table, number, mask_at(table, mask));
        leave_mask(table, mask);
    }
    core_unlock(core);
}

void table_set_miss(struct core *core, struct instance *instance, uint32_t id, uint32_t action,
                    const uint64_t *parameters) {
    core_lock(core);
    write_action(&instance->tables[id], instance->tables[id].miss, action, parameters);
    core_unlock(core);
}

// What entry `number` has after its parameters.
uint64_t *table_extra(struct instance *instance, uint32_t id, uint32_t number) {
    struct table *table = &instance->tables[id];
    return parameters_of(table, entry_at(table, number)) + table->shape.parameter_limbs;
}
