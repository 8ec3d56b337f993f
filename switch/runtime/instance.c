// A loaded program's state, and the control plane's access to it.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core.h"
#include "table.h"

// Zeroed memory that costs nothing until it is touched.
static void *pages(size_t bytes) {
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void release(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes ? bytes : 1);
}

static size_t index_size(const struct table_shape *shape) {
    size_t size = 8;
    if (shape->kind == TABLE_ORDERED) return shape->capacity;
    while (size < 2 * (size_t)shape->capacity) size *= 2;
    return size;
}

static int table_open(struct table *table, const struct table_shape *shape) {
    table->shape = *shape;
    table->stride = sizeof(struct entry) + 8 * (size_t)(shape->stored_limbs + shape->parameter_limbs);
    table->entries = pages(table->stride * shape->capacity);
    table->miss = pages(table->stride);
    table->index = pages(index_size(shape) * sizeof *table->index);
    table->index_mask = (uint32_t)index_size(shape) - 1;
    return table->entries && table->miss && table->index ? 0 : -ENOMEM;
}

static void table_close(struct table *table) {
    release(table->entries, table->stride * table->shape.capacity);
    release(table->miss, table->stride);
    release(table->index, index_size(&table->shape) * sizeof *table->index);
}

static size_t register_bytes(const struct register_shape *shape) { return (size_t)shape->cell_bytes * shape->size; }

void instance_free(struct instance *instance) {
    const struct program *program = instance->program;
    for (uint32_t i = 0; instance->tables && i < program->tables; i++) table_close(&instance->tables[i]);
    for (uint32_t i = 0; instance->registers && i < program->registers; i++)
        release(instance->registers[i], register_bytes(&program->register_shapes[i]));
    for (uint32_t i = 0; instance->counters && i < program->counters; i++)
        release(instance->counters[i], program->counter_sizes[i] * sizeof(struct count));
    release(instance->state, program->state_bytes);
    for (uint32_t i = 0; instance->value_sets && i < program->value_sets; i++) free(instance->value_sets[i].cells);
    free(instance->value_sets);
    free(instance->tables);
    free(instance->registers);
    free(instance->counters);
    free(instance);
}

static int instance_open(struct instance *instance) {
    const struct program *program = instance->program;
    int result = 0;
    instance->tables = calloc(program->tables + 1, sizeof *instance->tables);
    instance->registers = calloc(program->registers + 1, sizeof *instance->registers);
    instance->counters = calloc(program->counters + 1, sizeof *instance->counters);
    instance->state = pages(program->state_bytes);
    instance->value_sets = calloc(program->value_sets + 1, sizeof *instance->value_sets);
    if (!instance->tables || !instance->registers || !instance->counters || !instance->state) return -ENOMEM;
    if (!instance->value_sets) return -ENOMEM;
    for (uint32_t i = 0; i < program->tables; i++)
        result |= table_open(&instance->tables[i], &program->table_shapes[i]);
    for (uint32_t i = 0; i < program->registers; i++)
        result |= !(instance->registers[i] = pages(register_bytes(&program->register_shapes[i])));
    for (uint32_t i = 0; i < program->counters; i++)
        result |= !(instance->counters[i] = pages(program->counter_sizes[i] * sizeof(struct count)));
    return result;
}

// NULL when there is not enough memory.
struct instance *instance_new(const struct program *program) {
    struct instance *instance = calloc(1, sizeof *instance);
    if (!instance) return NULL;
    instance->program = program;
    if (instance_open(instance) == 0) return instance;
    instance_free(instance);
    return NULL;
}

static void write_entry(struct table *table, struct entry *entry, uint32_t action, const uint64_t *parameters) {
    entry->action = action;
    memcpy(entry->limbs + table->shape.stored_limbs, parameters, 8 * (size_t)table->shape.parameter_limbs);
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

// Put an entry into the free place `number`, at `rank` of an ordered table.
void table_insert(struct core *core, struct instance *instance, uint32_t id, uint32_t number, uint32_t rank,
                  const uint64_t *match, uint32_t action, const uint64_t *parameters) {
    core_lock(core);
    struct table *table = &instance->tables[id];
    struct entry *entry = entry_at(table, number);
    entry->count = (struct count){0, 0};
    memcpy(entry->limbs, match, 8 * (size_t)table->shape.stored_limbs);
    write_entry(table, entry, action, parameters);
    if (table->shape.kind == TABLE_EXACT) {
        link_exact(table, number);
    } else {
        memmove(table->index + rank + 1, table->index + rank, (table->used - rank) * sizeof *table->index);
        table->index[rank] = number;
    }
    table->used++;
    core_unlock(core);
}

void table_modify(struct core *core, struct instance *instance, uint32_t id, uint32_t number, uint32_t action,
                  const uint64_t *parameters) {
    core_lock(core);
    write_entry(&instance->tables[id], entry_at(&instance->tables[id], number), action, parameters);
    core_unlock(core);
}

void table_delete(struct core *core, struct instance *instance, uint32_t id, uint32_t number, uint32_t rank) {
    core_lock(core);
    struct table *table = &instance->tables[id];
    table->used--;
    if (table->shape.kind == TABLE_EXACT)
        unlink_exact(table, number);
    else
        memmove(table->index + rank, table->index + rank + 1, (table->used - rank) * sizeof *table->index);
    core_unlock(core);
}

void table_set_miss(struct core *core, struct instance *instance, uint32_t id, uint32_t action,
                    const uint64_t *parameters) {
    core_lock(core);
    write_entry(&instance->tables[id], instance->tables[id].miss, action, parameters);
    core_unlock(core);
}

// Where counts are: of entry `number` of a table, of the default entry, of a counter's cell.
struct count *table_count(struct instance *instance, uint32_t id, uint32_t number) {
    return &entry_at(&instance->tables[id], number)->count;
}

struct count *miss_count(struct instance *instance, uint32_t id) { return &instance->tables[id].miss->count; }

struct count *counter_cell(struct instance *instance, uint32_t id, uint32_t index) {
    return &instance->counters[id][index];
}

uint8_t *register_cell(struct instance *instance, uint32_t id, uint32_t index) {
    return instance->registers[id] + (size_t)index * instance->program->register_shapes[id].cell_bytes;
}

void core_read(struct core *core, void *to, const void *from, uint64_t bytes) {
    core_lock(core);
    memcpy(to, from, bytes);
    core_unlock(core);
}

void core_write(struct core *core, void *to, const void *from, uint64_t bytes) { core_read(core, to, from, bytes); }
