// Two-rate three-colour meters (RFC 2698), colour-blind: the peak rate first, then the committed rate.
//
// Tokens are counted from one point in time, as in BMv2, so that rounding errors do not add up.
#ifndef KOFN_METER_H
#define KOFN_METER_H

#include <stdint.h>

enum colour { COLOUR_GREEN, COLOUR_YELLOW, COLOUR_RED };

struct rate {
    double per_us;    // packets or bytes in a microsecond
    uint64_t burst;   // the most tokens
    uint64_t tokens;  // the present tokens
    uint64_t given;   // tokens since `since_us`
};

struct meter {
    uint64_t configured;  // 0: everything is green
    uint64_t since_us;
    struct rate committed, peak;
};

#define GIVEN_MAX ((uint64_t)1 << 60)  // above it the count restarts from the present time

static inline void rate_fill(struct rate *rate, uint64_t elapsed_us) {
    double since = (double)elapsed_us * rate->per_us;
    uint64_t given = since < (double)GIVEN_MAX ? (uint64_t)since : GIVEN_MAX;
    uint64_t tokens = rate->tokens + (given - rate->given);
    rate->given = given;
    rate->tokens = tokens < rate->burst ? tokens : rate->burst;
}

static inline int rate_takes(struct rate *rate, uint64_t elapsed_us, uint64_t units) {
    rate_fill(rate, elapsed_us);
    if (rate->tokens < units) return 0;
    rate->tokens -= units;
    return 1;
}

static inline enum colour meter_run(struct meter *meter, uint64_t now_us, uint64_t units) {
    if (!meter->configured) return COLOUR_GREEN;
    uint64_t elapsed_us = now_us - meter->since_us;
    if (meter->peak.given == GIVEN_MAX) {
        rate_fill(&meter->committed, elapsed_us);
        meter->committed.given = meter->peak.given = 0;
        meter->since_us = now_us - 1;
        elapsed_us = 1;
    }
    if (!rate_takes(&meter->peak, elapsed_us, units)) return COLOUR_RED;
    return rate_takes(&meter->committed, elapsed_us, units) ? COLOUR_GREEN : COLOUR_YELLOW;
}

#endif
