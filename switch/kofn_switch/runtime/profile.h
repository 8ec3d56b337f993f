// Action profiles: members that entries refer to, and groups of members.
#ifndef KOFN_PROFILE_H
#define KOFN_PROFILE_H

#include "program.h"

static inline const struct member *member_at(const struct profile *profile, uint64_t number) {
    return (const struct member *)(profile->members + number * profile->stride);
}

// Return NULL when the group is empty.
static inline const struct member *member_of(const struct profile *profile, uint64_t group, uint64_t hash) {
    const struct choices *choices = &profile->groups[group];
    return choices->size ? member_at(profile, choices->members[hash % choices->size]) : (const struct member *)0;
}

void profile_close(struct profile *profile);

#endif
