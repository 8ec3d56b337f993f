/* Sets of a rack's contributions: bit r of part p is part p of rank r. */
#pragma once
#include "header.h"

/* Whether some of `these` are in the set. */
static inline int members_any(const uint64_t *set, const uint64_t *these) {
    uint64_t common = 0;
    for (int part = 0; part < KOFN_PARTS; part++)
        common |= set[part] & these[part];
    return common != 0;
}

/* Whether all of `these` are in the set. */
static inline int members_all(const uint64_t *set, const uint64_t *these) {
    uint64_t missing = 0;
    for (int part = 0; part < KOFN_PARTS; part++)
        missing |= these[part] & ~set[part];
    return !missing;
}

static inline void members_add(uint64_t *set, const uint64_t *these) {
    for (int part = 0; part < KOFN_PARTS; part++)
        set[part] |= these[part];
}

static inline void members_remove(uint64_t *set, const uint64_t *these) {
    for (int part = 0; part < KOFN_PARTS; part++)
        set[part] &= ~these[part];
}
