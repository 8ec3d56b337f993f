// Replaces a whole value set at once: a packet sees the old one or the new one.
#include "value_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

// Set `count` concatenated keys; -ENOMEM leaves the set as it was.
int value_set_replace(struct core *core, struct instance *instance, uint32_t id, const uint64_t *keys, uint32_t count) {
    uint32_t limbs = instance->program->value_set_limbs[id];
    struct value_set new = {NULL, 1}, old;
    while (new.mask < 2 * (uint64_t)count) new.mask = 2 * new.mask + 1;
    new.cells = calloc((size_t)new.mask + 1, 8 * (size_t)(1 + limbs));
    if (!new.cells) return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *cell = value_cell(&new, keys + (size_t)i * limbs, limbs);
        cell[0] = 1;
        memcpy(cell + 1, keys + (size_t)i * limbs, 8 * (size_t)limbs);
    }
    core_lock(core);
    old = instance->value_sets[id];
    instance->value_sets[id] = new;
    core_unlock(core);
    free(old.cells);
    return 0;
}
