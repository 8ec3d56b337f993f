// Look-ups. An exact table hashes the key. All other tables hash the masked key once for each different mask of the entries'
// keys, beginning with the mask that has the best entry, until no better entry is possible. Range fields are masked out.
// Entries of equal hash form a chain, the best entry first.
#ifndef KOFN_TABLE_H
#define KOFN_TABLE_H

#include "program.h"

static inline uint32_t hash_key(const uint64_t *key, uint32_t limbs) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < limbs; i++) {
        unsigned __int128 product = (unsigned __int128)(hash ^ key[i]) * 0xd6e8feb86659fd93u;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return (uint32_t)(hash ^ hash >> 32);
}

static inline struct entry *entry_at(const struct table *table, uint32_t number) {
    return (struct entry *)(table->entries + number * table->stride);
}

static inline int same_key(const uint64_t *a, const uint64_t *b, uint32_t limbs) {
    uint64_t difference = 0;
    for (uint32_t i = 0; i < limbs; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}

static inline struct entry *find_exact(const struct table *table, const uint64_t *key, uint32_t limbs) {
    for (uint32_t at = hash_key(key, limbs) & table->index_mask;; at = (at + 1) & table->index_mask) {
        if (table->index[at] == 0) return NULL;
        struct entry *entry = entry_at(table, table->index[at] - 1);
        if (same_key(entry->limbs, key, limbs)) return entry;
    }
}

// An ordered table's mask; no entry with this mask has a better rank than `bound`.
struct mask {
    uint64_t bound;
    uint64_t entries;
    uint64_t limbs[];
};

static inline struct mask *mask_at(const struct table *table, uint32_t number) {
    return (struct mask *)(table->masks + number * table->mask_stride);
}

// An entry of an ordered table stores all fields' values (or low bounds), then their masks (or high bounds), then its rank and
// the next entry of its chain.
static inline uint64_t *rank_of(struct entry *entry, uint32_t key_limbs) { return entry->limbs + 2 * key_limbs; }

static inline uint64_t *next_of(struct entry *entry, uint32_t key_limbs) { return entry->limbs + 2 * key_limbs + 1; }

// The control plane's changes of tables; packets see each change whole, or not at all. `match` has the form in which an entry
// stores it, without the limbs after the masks. For an ordered table, `order` is the entry's order, of which the lowest is the
// best, and `mask` is the mask of the entry's key, zero for range fields.
struct core;
int64_t table_find(struct instance *instance, uint32_t id, const uint64_t *mask, const uint64_t *match, uint64_t order);
int64_t table_insert(struct core *core, struct instance *instance, uint32_t id, const uint64_t *mask,
                     const uint64_t *match, uint64_t order, uint32_t action, const uint64_t *parameters);

// Tests whether a key matches an entry's stored fields; each table has its own function.
typedef int matcher(const uint64_t *key, const uint64_t *stored);

static inline __attribute__((always_inline)) struct entry *find_ordered(const struct table *table, const uint64_t *key,
                                                                         uint32_t limbs, matcher *matches) {
    struct entry *best = NULL;
    uint64_t rank = UINT64_MAX;  // a lower rank is better
    for (uint32_t i = 0; i < table->masks_used; i++) {
        const struct mask *mask = mask_at(table, table->mask_order[i]);
        if (mask->bound > rank) break;
        uint64_t masked[limbs];
        for (uint32_t l = 0; l < limbs; l++) masked[l] = key[l] & mask->limbs[l];
        uint64_t at = table->index[hash_key(masked, limbs) & table->index_mask];
        while (at != 0) {
            struct entry *entry = entry_at(table, (uint32_t)at - 1);
            if (*rank_of(entry, limbs) >= rank) break;
            if (matches(key, entry->limbs)) {
                best = entry;
                rank = *rank_of(entry, limbs);
                break;
            }
            at = *next_of(entry, limbs);
        }
    }
    return best;
}

#endif
