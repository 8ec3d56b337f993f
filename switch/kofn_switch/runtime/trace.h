// The functions that traced programs call; other programs have no such calls.
#ifndef KOFN_TRACE_H
#define KOFN_TRACE_H

#include "program.h"

struct tracer {
    void (*begin)(struct core *core, uint32_t port, const uint8_t *packet, uint32_t length);
    void (*end)(struct core *core);
    void (*text)(struct core *core, const char *text);
    void (*value)(struct core *core, const uint64_t *limbs, uint32_t count);
};

static inline void say(struct core *core, const char *text) { services(core)->tracer->text(core, text); }

static inline void say_wide(struct core *core, const char *name, const uint64_t *limbs, uint32_t count) {
    say(core, name);
    services(core)->tracer->value(core, limbs, count);
}

static inline void say_number(struct core *core, const char *name, uint64_t value) {
    say_wide(core, name, &value, 1);
}

#endif
