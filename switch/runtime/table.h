// Look-ups. Exact tables are hashed; all others are a list ordered by rank that is searched from the front.
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

#endif
