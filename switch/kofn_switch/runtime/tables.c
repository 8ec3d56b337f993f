// The control plane's changes of tables; packets see each change whole, or not at all.
#include <errno.h>
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

// Remove an entry from the index and close the gap, so that no look-up stops early.
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

// Keep masks in the order of their bounds.
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

static struct mask *find_mask(const struct table *table, const uint64_t *limbs) {
    for (uint32_t i = 0; i < table->masks_used; i++) {
        struct mask *mask = mask_at(table, table->mask_order[i]);
        if (same_key(mask->limbs, limbs, table->shape.key_limbs)) return mask;
    }
    return NULL;
}

static struct mask *new_mask(struct table *table, const uint64_t *limbs, uint64_t rank) {
    uint32_t number = 0;
    while (mask_at(table, number)->entries > 0) number++;
    struct mask *mask = mask_at(table, number);
    memcpy(mask->limbs, limbs, 8 * (size_t)table->shape.key_limbs);
    mask->bound = rank;
    table->mask_order[table->masks_used] = number;
    move_mask(table, table->masks_used++);
    return mask;
}

static uint32_t mask_number(const struct table *table, const struct mask *mask) {
    return (uint32_t)(((const uint8_t *)mask - table->masks) / table->mask_stride);
}

// Count one more entry of rank `rank` for this mask. The bound stays until the mask's last entry is gone: a bound that
// is too good costs a probe, but never loses an entry.
static struct mask *use_mask(struct table *table, const uint64_t *limbs, uint64_t rank) {
    struct mask *mask = find_mask(table, limbs);
    if (mask == NULL) mask = new_mask(table, limbs, rank);
    if (rank < mask->bound) {
        mask->bound = rank;
        move_mask(table, place_of(table, mask_number(table, mask)));
    }
    mask->entries++;
    return mask;
}

static void leave_mask(struct table *table, struct mask *mask) {
    if (--mask->entries > 0) return;
    uint32_t place = place_of(table, mask_number(table, mask));
    table->masks_used--;
    memmove(table->mask_order + place, table->mask_order + place + 1,
            (table->masks_used - place) * sizeof *table->mask_order);
}

// Return the chain of an entry with this match: the hash of its key under its mask.
static uint32_t *chain_of(const struct table *table, const uint64_t *match, const struct mask *mask) {
    uint32_t limbs = table->shape.key_limbs;
    uint64_t masked[limbs];
    for (uint32_t i = 0; i < limbs; i++) masked[i] = match[i] & mask->limbs[i];
    return &table->index[hash_key(masked, limbs) & table->index_mask];
}

static void link_ordered(struct table *table, uint32_t number, const struct mask *mask) {
    uint32_t limbs = table->shape.key_limbs;
    struct entry *entry = entry_at(table, number), *before = NULL;
    uint32_t *chain = chain_of(table, entry->limbs, mask);
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
    uint32_t *chain = chain_of(table, entry->limbs, mask);
    for (uint64_t at = *chain; at != number + 1; at = *next_of(before, limbs))
        before = entry_at(table, (uint32_t)at - 1);
    if (before)
        *next_of(before, limbs) = *next_of(entry, limbs);
    else
        *chain = (uint32_t)*next_of(entry, limbs);
}

static int64_t find_ordered_row(const struct table *table, const uint64_t *mask_limbs, const uint64_t *match,
                                uint64_t order) {
    uint32_t limbs = table->shape.key_limbs;
    const struct mask *mask = find_mask(table, mask_limbs);
    if (mask == NULL) return -ENOENT;
    for (uint64_t at = *chain_of(table, match, mask); at != 0;) {
        struct entry *entry = entry_at(table, (uint32_t)at - 1);
        if (*rank_of(entry, limbs) >> 32 > order) break;
        if (*rank_of(entry, limbs) >> 32 == order && same_key(entry->limbs, match, 2 * limbs)) return (int64_t)at - 1;
        at = *next_of(entry, limbs);
    }
    return -ENOENT;
}

static int64_t find_exact_row(const struct table *table, const uint64_t *match) {
    const struct entry *entry = find_exact(table, match, table->shape.key_limbs);
    return entry == NULL ? -ENOENT : (int64_t)(((const uint8_t *)entry - table->entries) / table->stride);
}

static int64_t find_row(const struct table *table, const uint64_t *mask, const uint64_t *match, uint64_t order) {
    return table->shape.kind == TABLE_EXACT ? find_exact_row(table, match) : find_ordered_row(table, mask, match, order);
}

// Return the place of the entry, or -ENOENT.
int64_t table_find(struct instance *instance, uint32_t id, const uint64_t *mask, const uint64_t *match, uint64_t order) {
    return find_row(&instance->tables[id], mask, match, order);
}

static uint32_t lowest_free(struct table *table) {
    while (entry_at(table, table->lowest)->taken) table->lowest++;
    return table->lowest;
}

static void write_entry(struct table *table, struct entry *entry, const uint64_t *match) {
    uint32_t limbs = table->shape.key_limbs * (table->shape.kind == TABLE_EXACT ? 1 : 2);
    memset(entry, 0, table->stride);
    memcpy(entry->limbs, match, 8 * (size_t)limbs);
    entry->taken = 1;
}

// Put an entry into the lowest free place. Return its number, -EEXIST or -ENOSPC.
int64_t table_insert(struct core *core, struct instance *instance, uint32_t id, const uint64_t *mask,
                     const uint64_t *match, uint64_t order, uint32_t action, const uint64_t *parameters) {
    struct table *table = &instance->tables[id];
    if (find_row(table, mask, match, order) >= 0) return -EEXIST;
    if (table->used == table->shape.capacity) return -ENOSPC;
    core_lock(core);
    uint32_t number = lowest_free(table);
    struct entry *entry = entry_at(table, number);
    write_entry(table, entry, match);
    write_action(table, entry, action, parameters);
    if (table->shape.kind == TABLE_EXACT) {
        link_exact(table, number);
    } else {
        uint64_t rank = *rank_of(entry, table->shape.key_limbs) = order << 32 | number;
        link_ordered(table, number, use_mask(table, mask, rank));
    }
    table->used++;
    core_unlock(core);
    return number;
}

void table_modify(struct core *core, struct instance *instance, uint32_t id, uint32_t number, uint32_t action,
                  const uint64_t *parameters) {
    core_lock(core);
    write_action(&instance->tables[id], entry_at(&instance->tables[id], number), action, parameters);
    core_unlock(core);
}

void table_delete(struct core *core, struct instance *instance, uint32_t id, uint32_t number, const uint64_t *mask_limbs) {
    core_lock(core);
    struct table *table = &instance->tables[id];
    if (table->shape.kind == TABLE_EXACT) {
        unlink_exact(table, number);
    } else {
        struct mask *mask = find_mask(table, mask_limbs);
        unlink_ordered(table, number, mask);
        leave_mask(table, mask);
    }
    entry_at(table, number)->taken = 0;
    if (number < table->lowest) table->lowest = number;
    table->used--;
    core_unlock(core);
}

uint32_t table_used(struct instance *instance, uint32_t id) { return instance->tables[id].used; }

// Return the first place from `number` on that has an entry, or -ENOENT.
int64_t table_next(struct instance *instance, uint32_t id, uint32_t number) {
    const struct table *table = &instance->tables[id];
    while (number < table->shape.capacity && !entry_at(table, number)->taken) number++;
    return number < table->shape.capacity ? (int64_t)number : -ENOENT;
}

// Read an entry's action, and its limbs up to the last parameter.
void table_read(struct instance *instance, uint32_t id, uint32_t number, uint64_t *row) {
    const struct table *table = &instance->tables[id];
    const struct entry *entry = entry_at(table, number);
    row[0] = entry->action;
    memcpy(row + 1, entry->limbs, 8 * (size_t)(table->shape.stored_limbs + table->shape.parameter_limbs));
}

void table_set_miss(struct core *core, struct instance *instance, uint32_t id, uint32_t action,
                    const uint64_t *parameters) {
    core_lock(core);
    write_action(&instance->tables[id], instance->tables[id].miss, action, parameters);
    core_unlock(core);
}

// Return the limbs after the parameters of entry `number`.
uint64_t *table_extra(struct instance *instance, uint32_t id, uint32_t number) {
    struct table *table = &instance->tables[id];
    return parameters_of(table, entry_at(table, number)) + table->shape.parameter_limbs;
}
