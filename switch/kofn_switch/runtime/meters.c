// The control plane's part of meters.
#include "meter.h"

#include <string.h>

#include "core.h"

// Return a rate with all its tokens; `bits` is a double in units a second.
static struct rate full(uint64_t bits, uint64_t burst) {
    double per_s;
    memcpy(&per_s, &bits, sizeof per_s);
    return (struct rate){.per_us = per_s / 1e6, .burst = burst, .tokens = burst};
}

// Configure a meter. `config` has the committed rate (units a second) and burst (units), then the peak rate and burst; NULL:
// everything is green.
void meter_set(struct core *core, struct meter *meter, const uint64_t *config) {
    core_lock(core);
    *meter = (struct meter){0};
    if (config)
        *meter = (struct meter){1, core->services.now_us(core), full(config[0], config[1]), full(config[2], config[3])};
    core_unlock(core);
}

// Return microseconds since the switch was made, the clock of entries' last hits.
uint64_t core_now_us(struct core *core) { return core->services.now_us(core); }
