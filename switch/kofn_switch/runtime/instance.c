// A loaded program's state, and the control plane's access to it.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core.h"
#include "meter.h"
#include "profile.h"
#include "table.h"

// Return zeroed memory, whose pages take physical memory only when they are touched.
static void *pages(size_t bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, flags, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void release(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes ? bytes : 1);
}

static size_t index_size(const struct table_shape *shape) {
    size_t size = 8;
    while (size < 2 * (size_t)shape->capacity) size *= 2;
    return size;
}

static int masks_open(struct table *table, const struct table_shape *shape) {
    table->mask_stride = sizeof(struct mask) + 8 * (size_t)shape->key_limbs;
    table->masks = pages(table->mask_stride * shape->capacity);
    table->mask_order = pages(shape->capacity * sizeof *table->mask_order);
    return table->masks && table->mask_order ? 0 : -ENOMEM;
}

static int table_open(struct table *table, const struct table_shape *shape) {
    table->shape = *shape;
    uint32_t limbs = shape->stored_limbs + shape->parameter_limbs + shape->extra_limbs;
    table->stride = sizeof(struct entry) + 8 * (size_t)limbs;
    table->entries = pages(table->stride * shape->capacity);
    table->miss = pages(table->stride);
    table->index = pages(index_size(shape) * sizeof *table->index);
    table->index_mask = (uint32_t)index_size(shape) - 1;
    if (!table->entries || !table->miss || !table->index) return -ENOMEM;
    return shape->kind == TABLE_ORDERED ? masks_open(table, shape) : 0;
}

static void table_close(struct table *table) {
    release(table->entries, table->stride * table->shape.capacity);
    release(table->miss, table->stride);
    release(table->index, index_size(&table->shape) * sizeof *table->index);
    release(table->masks, table->mask_stride * table->shape.capacity);
    release(table->mask_order, table->shape.capacity * sizeof *table->mask_order);
}

static size_t register_bytes(const struct register_shape *shape) { return (size_t)shape->cell_bytes * shape->size; }

void instance_free(struct instance *instance) {
    const struct program *program = instance->program;
    for (uint32_t i = 0; instance->tables && i < program->tables; i++) table_close(&instance->tables[i]);
    for (uint32_t i = 0; instance->registers && i < program->registers; i++)
        release(instance->registers[i], register_bytes(&program->register_shapes[i]));
    for (uint32_t i = 0; instance->counters && i < program->counters; i++)
        release(instance->counters[i], program->counter_sizes[i] * sizeof(struct count));
    for (uint32_t i = 0; instance->meters && i < program->meters; i++)
        release(instance->meters[i], program->meter_sizes[i] * sizeof(struct meter));
    for (uint32_t i = 0; instance->profiles && i < program->profiles; i++) profile_close(&instance->profiles[i]);
    release(instance->state, program->state_bytes);
    for (uint32_t i = 0; instance->value_sets && i < program->value_sets; i++) free(instance->value_sets[i].cells);
    free(instance->value_sets);
    free(instance->tables);
    free(instance->registers);
    free(instance->counters);
    free(instance->meters);
    free(instance->profiles);
    free(instance);
}

static int instance_open(struct instance *instance) {
    const struct program *program = instance->program;
    int result = 0;
    instance->tables = calloc(program->tables + 1, sizeof *instance->tables);
    instance->registers = calloc(program->registers + 1, sizeof *instance->registers);
    instance->counters = calloc(program->counters + 1, sizeof *instance->counters);
    instance->meters = calloc(program->meters + 1, sizeof *instance->meters);
    instance->profiles = calloc(program->profiles + 1, sizeof *instance->profiles);
    instance->state = pages(program->state_bytes);
    instance->value_sets = calloc(program->value_sets + 1, sizeof *instance->value_sets);
    if (!instance->tables || !instance->registers || !instance->counters || !instance->state) return -ENOMEM;
    if (!instance->meters || !instance->profiles || !instance->value_sets) return -ENOMEM;
    for (uint32_t i = 0; i < program->tables; i++)
        result |= table_open(&instance->tables[i], &program->table_shapes[i]);
    for (uint32_t i = 0; i < program->registers; i++)
        result |= !(instance->registers[i] = pages(register_bytes(&program->register_shapes[i])));
    for (uint32_t i = 0; i < program->counters; i++)
        result |= !(instance->counters[i] = pages(program->counter_sizes[i] * sizeof(struct count)));
    for (uint32_t i = 0; i < program->meters; i++)
        result |= !(instance->meters[i] = pages(program->meter_sizes[i] * sizeof(struct meter)));
    for (uint32_t i = 0; i < program->profiles; i++)
        instance->profiles[i].stride = sizeof(struct member) + 8 * (size_t)program->profile_shapes[i].parameter_limbs;
    return result;
}

// Make an instance. Return NULL when there is not enough memory.
struct instance *instance_new(const struct program *program) {
    struct instance *instance = calloc(1, sizeof *instance);
    if (!instance) return NULL;
    instance->program = program;
    if (instance_open(instance) == 0) return instance;
    instance_free(instance);
    return NULL;
}

// Return the address of a count: of entry `number` of a table, of the default entry, of a counter's cell.
struct count *table_count(struct instance *instance, uint32_t id, uint32_t number) {
    return &entry_at(&instance->tables[id], number)->count;
}

struct count *miss_count(struct instance *instance, uint32_t id) { return &instance->tables[id].miss->count; }

struct count *counter_cell(struct instance *instance, uint32_t id, uint32_t index) {
    return &instance->counters[id][index];
}

struct meter *meter_cell(struct instance *instance, uint32_t id, uint32_t index) {
    return &instance->meters[id][index];
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
