/* A worker's host: what is between its protocol core and its links. What the core wants sent is made, paced and sent; what
 * comes is read. Python is called when the core wants anything else done, and when its deadline has passed.
 */
#pragma once
#include "core.h"
#include "network.h"
#include "pacer.h"

#define POSTPONED_S 1e-3 /* a deadline that is later by less is worth no other timer */

struct host {
    int64_t attentive; /* the first field: host.py sets it; each packet is news to Python */
    int64_t failed;    /* whether the core has */
    struct machine *machine;
    struct core *core;
    struct link *link;
    double packet_s; /* of CPU time, a packet */
    int64_t news, timer; /* calls of Python's */
    int64_t paced;
    struct pacer pacer;
    int64_t making;        /* packets */
    struct frames leaving; /* as soon as those are made */
    struct frames waiting; /* for the pacer */
    int64_t rings; /* whether the pacer's timer is set */
    double due_s;  /* of the deadline's; INFINITY: it is not set */
    int64_t timers; /* that were set: an earlier one than the last rings in vain */
};

/* Packets of `mbps` at most leave, 0: unpaced, with bursts and delays of timers as pacer_open(). */
struct host *host_open(struct machine *machine, struct core *core, struct link *link, double packet_s, double mbps,
                       int64_t burst_bytes, double late_s, int64_t news, int64_t timer);
void host_close(struct host *host);
/* Send what the core wants sent; all else that it wants is left. */
void host_send(struct host *host);
/* Have `timer` called when the core's deadline has passed, or a little before. */
void host_set_timer(struct host *host);
void host_from(struct host *host, struct link *link);
/* A packet has come. */
void host_put(struct host *host, const uint8_t *header, const uint8_t *values, int64_t size);
