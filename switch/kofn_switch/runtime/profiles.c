// The control plane's changes of action profiles; packets see each change whole, or not at all.
#include "profile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define ROOM 64

void profile_close(struct profile *profile) {
    for (uint32_t i = 0; i < profile->group_room; i++) free(profile->groups[i].members);
    free(profile->groups);
    free(profile->members);
}

// Grow an array to at least `wanted` places of `bytes` bytes; the new places are zero. Return NULL without enough memory.
static void *grown(void *places, size_t bytes, uint32_t *room, uint32_t wanted) {
    uint32_t size = *room ? *room : ROOM;
    if (wanted <= *room) return places;
    while (size < wanted) size *= 2;
    uint8_t *larger = realloc(places, bytes * size);
    if (!larger) return NULL;
    memset(larger + bytes * *room, 0, bytes * (size - *room));
    *room = size;
    return larger;
}

static int write_member(struct profile *profile, uint32_t number, uint32_t action, const uint64_t *parameters) {
    uint8_t *members = grown(profile->members, profile->stride, &profile->member_room, number + 1);
    if (!members) return -ENOMEM;
    profile->members = members;
    struct member *member = (struct member *)(members + number * profile->stride);
    member->action = action;
    memcpy(member->limbs, parameters, profile->stride - sizeof *member);
    return 0;
}

int profile_set_member(struct core *core, struct instance *instance, uint32_t id, uint32_t number, uint32_t action,
                       const uint64_t *parameters) {
    core_lock(core);
    int result = write_member(&instance->profiles[id], number, action, parameters);
    core_unlock(core);
    return result;
}

// Set a group, which then owns `members`.
static int write_group(struct profile *profile, uint32_t number, uint32_t *members, uint32_t size) {
    struct choices *groups = grown(profile->groups, sizeof *groups, &profile->group_room, number + 1);
    if (!groups) return -ENOMEM;
    profile->groups = groups;
    free(groups[number].members);
    groups[number] = (struct choices){size, members};
    return 0;
}

// Set a group's members; size 0 makes it empty.
int profile_set_group(struct core *core, struct instance *instance, uint32_t id, uint32_t number,
                      const uint32_t *members, uint32_t size) {
    uint32_t *copy = malloc((size + 1) * sizeof *copy);
    if (!copy) return -ENOMEM;
    memcpy(copy, members, size * sizeof *copy);
    core_lock(core);
    int result = write_group(&instance->profiles[id], number, copy, size);
    core_unlock(core);
    if (result < 0) free(copy);
    return result;
}
