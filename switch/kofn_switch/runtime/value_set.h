// Value sets: the control plane's keys that a parser's select compares with.
#ifndef KOFN_VALUE_SET_H
#define KOFN_VALUE_SET_H

#include "program.h"
#include "table.h"

// Return the cell that holds the key, or the free cell for the key; at least one cell is free.
static inline uint64_t *value_cell(const struct value_set *set, const uint64_t *key, uint32_t limbs) {
    for (uint32_t at = hash_key(key, limbs) & set->mask;; at = (at + 1) & set->mask) {
        uint64_t *cell = set->cells + (size_t)at * (1 + limbs);
        if (!cell[0] || same_key(cell + 1, key, limbs)) return cell;
    }
}

static inline int in_value_set(const struct value_set *set, const uint64_t *key, uint32_t limbs) {
    return set->cells && value_cell(set, key, limbs)[0];
}

#endif
