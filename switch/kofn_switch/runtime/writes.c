// P4Runtime's WriteRequest for plain inserts: entries with a key of fields, a priority if the table needs one, an
// action with its parameters, and nothing else. The control plane in Python handles all other updates, and reports the
// faults of wrong ones.
#include <errno.h>
#include <string.h>

#include "core.h"
#include "table.h"

enum wire { VARINT = 0, BYTES = 2 };

enum { WRITE_UPDATE = 4 };
enum { UPDATE_TYPE = 1, UPDATE_ENTITY = 2, INSERT = 1 };
enum { ENTITY_TABLE_ENTRY = 2 };
enum { ENTRY_TABLE = 1, ENTRY_MATCH = 2, ENTRY_ACTION = 3, ENTRY_PRIORITY = 4 };
enum { MATCH_FIELD = 1, MATCH_EXACT = 2, MATCH_TERNARY = 3, MATCH_LPM = 4, MATCH_RANGE = 6, MATCH_OPTIONAL = 7 };
enum { TABLE_ACTION = 1 };
enum { ACTION_ID = 1, ACTION_PARAMETER = 4, PARAMETER_ID = 2, PARAMETER_VALUE = 3 };

// The form of a program's entries, as words; the record of a table or an action begins with its length in words.
struct value_plan {
    uint32_t id, width, at;  // width in bits; at: the value's first limb
};

struct field_plan {
    struct value_plan value;
    uint32_t kind;  // the field's number in FieldMatch
};

struct action_plan {
    uint32_t words, id, number, parameters;
    struct value_plan parameter[];
};

struct table_plan {
    uint32_t words, id, number, prioritised, fields, actions;
    struct field_plan field[];  // the actions follow
};

enum { FIELDS_MAX = 64, LIMBS_MAX = 512 };  // entries of tables and actions with more are not plain

struct bytes {
    const uint8_t *at, *end;
};

struct item {
    uint32_t number, wire;
    uint64_t value;
    struct bytes bytes;
};

static int read_varint(struct bytes *bytes, uint64_t *value) {
    *value = 0;
    for (uint32_t shift = 0; shift < 64 && bytes->at < bytes->end; shift += 7) {
        uint8_t byte = *bytes->at++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return 1;
    }
    return 0;
}

// Read the next field of a message. Return 1, 0 at its end, -EINVAL for a field that is never plain.
static int next_item(struct bytes *message, struct item *item) {
    uint64_t tag;
    if (message->at == message->end) return 0;
    if (!read_varint(message, &tag) || !read_varint(message, &item->value)) return -EINVAL;
    item->number = (uint32_t)(tag >> 3);
    item->wire = tag & 7;
    if (item->wire == VARINT) return 1;
    if (item->wire != BYTES || item->value > (uint64_t)(message->end - message->at)) return -EINVAL;
    item->bytes = (struct bytes){message->at, message->at + item->value};
    message->at += item->value;
    return 1;
}

static uint32_t limbs_of(uint32_t width) { return (width + 63) / 64; }

static uint64_t low_ones(uint32_t bits) { return bits >= 64 ? UINT64_MAX : (1ull << bits) - 1; }

// Write a number of `width` bits whose lowest `zeros` bits are 0 and all others 1.
static void write_ones(uint64_t *limbs, uint32_t width, uint32_t zeros) {
    for (uint32_t i = 0; i < limbs_of(width); i++) {
        uint32_t below = zeros > 64 * i ? zeros - 64 * i : 0;
        limbs[i] = low_ones(width - 64 * i) & ~low_ones(below);
    }
}

static int read_number(struct bytes bytes, uint32_t width, uint64_t *limbs) {
    if (bytes.at == bytes.end) return 0;
    while (bytes.at < bytes.end && *bytes.at == 0) bytes.at++;
    size_t size = (size_t)(bytes.end - bytes.at);
    if (size > (width + 7) / 8 || (size > 0 && size == (width + 7) / 8 && width % 8 && *bytes.at >> width % 8)) return 0;
    memset(limbs, 0, 8 * (size_t)limbs_of(width));
    for (size_t i = 0; i < size; i++) limbs[i / 8] |= (uint64_t)bytes.end[-1 - (ptrdiff_t)i] << 8 * (i % 8);
    return 1;
}

static int within(const uint64_t *value, const uint64_t *mask, uint32_t limbs) {
    uint64_t outside = 0;
    for (uint32_t i = 0; i < limbs; i++) outside |= value[i] & ~mask[i];
    return outside == 0;
}

static int is_zero(const uint64_t *value, uint32_t limbs) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < limbs; i++) any |= value[i];
    return any == 0;
}

static int is_above(const uint64_t *a, const uint64_t *b, uint32_t limbs) {
    while (limbs-- > 0)
        if (a[limbs] != b[limbs]) return a[limbs] > b[limbs];
    return 0;
}

static int spans_all(const uint64_t *low, const uint64_t *high, uint32_t width) {
    uint64_t ones[limbs_of(width)];
    write_ones(ones, width, 0);
    return is_zero(low, limbs_of(width)) && same_key(high, ones, limbs_of(width));
}

// An entry before it enters its table.
struct draft {
    uint64_t match[2 * LIMBS_MAX], mask[LIMBS_MAX], parameters[LIMBS_MAX];
    uint64_t seen;  // bit i: field i is given
    uint64_t order;
    uint32_t action;
};

// Read a field's two numbers, value and mask or low and high, from its match message.
static int read_match(const struct field_plan *field, struct bytes message, uint64_t *first, uint64_t *second) {
    uint32_t width = field->value.width, limbs = limbs_of(width), seen = 0;
    uint64_t length = 0;
    struct item item;
    int more;
    while ((more = next_item(&message, &item)) > 0) {
        if (item.number > 2 || seen & 1u << item.number) return 0;
        seen |= 1u << item.number;
        if (item.wire == VARINT) {
            if (field->kind != MATCH_LPM || item.number != 2) return 0;
            length = item.value;
        } else if (!read_number(item.bytes, width, item.number == 1 ? first : second)) {
            return 0;
        }
    }
    int both = field->kind == MATCH_TERNARY || field->kind == MATCH_LPM || field->kind == MATCH_RANGE;
    if (more < 0 || seen != (both ? 6u : 2u)) return 0;
    switch (field->kind) {
        case MATCH_LPM:
            if (length < 1 || length > width) return 0;
            write_ones(second, width, width - (uint32_t)length);
            return within(first, second, limbs);
        case MATCH_TERNARY: return !is_zero(second, limbs) && within(first, second, limbs);
        case MATCH_RANGE: return !is_above(first, second, limbs) && !spans_all(first, second, width);
        default: write_ones(second, width, 0); return 1;
    }
}

static int read_field(const struct table_plan *plan, uint32_t key_limbs, struct bytes message, struct draft *draft) {
    uint64_t id = 0;
    struct item item, given = {0};
    int more;
    while ((more = next_item(&message, &item)) > 0) {
        if (item.number == MATCH_FIELD && item.wire == VARINT)
            id = item.value;
        else if (item.wire == BYTES && given.number == 0)
            given = item;
        else
            return 0;
    }
    for (uint32_t i = 0; more == 0 && i < plan->fields; i++) {
        const struct field_plan *field = &plan->field[i];
        if (field->value.id != id) continue;
        if (field->kind != given.number || draft->seen & 1ull << i) return 0;
        draft->seen |= 1ull << i;
        return read_match(field, given.bytes, draft->match + field->value.at, draft->match + key_limbs + field->value.at);
    }
    return 0;
}

static int read_parameter(const struct action_plan *plan, struct bytes message, struct draft *draft, uint64_t *seen) {
    uint64_t id = 0;
    struct item item, given = {0};
    int more;
    while ((more = next_item(&message, &item)) > 0) {
        if (item.number == PARAMETER_ID && item.wire == VARINT)
            id = item.value;
        else if (item.number == PARAMETER_VALUE && item.wire == BYTES)
            given = item;
        else
            return 0;
    }
    for (uint32_t i = 0; more == 0 && i < plan->parameters; i++) {
        const struct value_plan *value = &plan->parameter[i];
        if (value->id != id) continue;
        if (*seen & 1ull << i) return 0;
        *seen |= 1ull << i;
        return read_number(given.bytes, value->width, draft->parameters + value->at);
    }
    return 0;
}

static const struct action_plan *find_action(const struct table_plan *plan, uint64_t id) {
    const uint32_t *at = (const uint32_t *)(plan->field + plan->fields);
    for (uint32_t i = 0; i < plan->actions; i++, at += *at)
        if (((const struct action_plan *)at)->id == id) return (const struct action_plan *)at;
    return NULL;
}

static int read_action(const struct table_plan *plan, struct bytes message, struct draft *draft) {
    struct item item, own;
    struct bytes left;
    if (next_item(&message, &own) != 1 || own.number != TABLE_ACTION || own.wire != BYTES) return 0;
    if (message.at != message.end) return 0;
    const struct action_plan *action = NULL;
    int more;
    for (left = own.bytes; (more = next_item(&left, &item)) > 0;)
        if (item.number == ACTION_ID && item.wire == VARINT) action = find_action(plan, item.value);
    if (more < 0 || action == NULL) return 0;
    uint64_t seen = 0;
    for (left = own.bytes; next_item(&left, &item) > 0;) {
        if (item.number == ACTION_ID && item.wire == VARINT) continue;
        if (item.number != ACTION_PARAMETER || item.wire != BYTES) return 0;
        if (!read_parameter(action, item.bytes, draft, &seen)) return 0;
    }
    draft->action = action->number;
    return seen == low_ones(action->parameters);
}

// Fill in the fields that were left out, so that they match everything, then the order and the masks.
static int complete(const struct table_plan *plan, uint32_t key_limbs, uint64_t priority, struct draft *draft) {
    uint64_t wild = 0;
    for (uint32_t i = 0; i < plan->fields; i++) {
        const struct field_plan *field = &plan->field[i];
        uint32_t limbs = limbs_of(field->value.width);
        uint64_t *second = draft->match + key_limbs + field->value.at, *mask = draft->mask + field->value.at;
        if (!(draft->seen & 1ull << i)) {
            if (field->kind == MATCH_EXACT) return 0;
            if (field->kind == MATCH_RANGE) write_ones(second, field->value.width, 0);
        }
        if (field->kind != MATCH_RANGE) memcpy(mask, second, 8 * (size_t)limbs);
        for (uint32_t l = 0; field->kind == MATCH_LPM && l < limbs; l++) wild -= (uint64_t)__builtin_popcountll(mask[l]);
        if (field->kind == MATCH_LPM) wild += field->value.width;
    }
    if (plan->prioritised ? priority < 1 || priority > INT32_MAX : priority != 0) return 0;
    draft->order = plan->prioritised ? INT32_MAX - priority : wild;
    return 1;
}

static const struct table_plan *find_table(const uint32_t *plan, uint64_t id) {
    for (; *plan != 0; plan += *plan)
        if (((const struct table_plan *)plan)->id == id) return (const struct table_plan *)plan;
    return NULL;
}

static int insert_entry(struct core *core, struct instance *instance, const uint32_t *plans, struct bytes message) {
    struct item item, action = {0};
    struct bytes left;
    const struct table_plan *plan = NULL;
    uint64_t priority = 0;
    int more;
    for (left = message; (more = next_item(&left, &item)) > 0;) {
        if (item.number == ENTRY_TABLE && item.wire == VARINT)
            plan = find_table(plans, item.value);
        else if (item.number == ENTRY_PRIORITY && item.wire == VARINT)
            priority = item.value;
        else if (item.number == ENTRY_ACTION && item.wire == BYTES && action.number == 0)
            action = item;
        else if (item.number != ENTRY_MATCH || item.wire != BYTES)
            return 0;
    }
    if (more < 0 || plan == NULL || action.number == 0) return 0;
    const struct table_shape *shape = &instance->tables[plan->number].shape;
    struct draft draft;
    draft.seen = 0;
    memset(draft.match, 0, 16 * (size_t)shape->key_limbs);
    memset(draft.mask, 0, 8 * (size_t)shape->key_limbs);
    memset(draft.parameters, 0, 8 * (size_t)shape->parameter_limbs);
    for (left = message; next_item(&left, &item) > 0;)
        if (item.number == ENTRY_MATCH && !read_field(plan, shape->key_limbs, item.bytes, &draft)) return 0;
    if (!read_action(plan, action.bytes, &draft) || !complete(plan, shape->key_limbs, priority, &draft)) return 0;
    return table_insert(core, instance, plan->number, draft.mask, draft.match, draft.order, draft.action,
                        draft.parameters) >= 0;
}

static int carry_out(struct core *core, struct instance *instance, const uint32_t *plans, struct bytes update) {
    struct item item, entity = {0};
    uint64_t type = 0;
    int more;
    while ((more = next_item(&update, &item)) > 0) {
        if (item.number == UPDATE_TYPE && item.wire == VARINT)
            type = item.value;
        else if (item.number == UPDATE_ENTITY && item.wire == BYTES && entity.number == 0)
            entity = item;
        else
            return 0;
    }
    if (more < 0 || type != INSERT || entity.number == 0) return 0;
    if (next_item(&entity.bytes, &item) != 1 || item.number != ENTITY_TABLE_ENTRY || item.wire != BYTES) return 0;
    return entity.bytes.at == entity.bytes.end && insert_entry(core, instance, plans, item.bytes);
}

// Carry out the updates of a serialised WriteRequest from byte `*at` on, until an update is not plain or fails. Return the
// number of updates that were carried out; `*at` is then the byte after the update that was not carried out. `plans` ends with
// a 0.
uint64_t write_plain(struct core *core, struct instance *instance, const uint32_t *plans, const uint8_t *request,
                     uint64_t size, uint64_t *at) {
    struct bytes left = {request + *at, request + size};
    struct item item;
    uint64_t done = 0;
    while (next_item(&left, &item) > 0) {
        *at = (uint64_t)(left.at - request);
        if (item.number != WRITE_UPDATE) continue;
        if (item.wire != BYTES || !carry_out(core, instance, plans, item.bytes)) return done;
        done++;
    }
    *at = size;
    return done;
}
