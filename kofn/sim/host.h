/* A worker's host, between its protocol core and its links. It makes, paces and sends the core's packets, and reads those that
 * arrive. It calls Python for the core's other instructions, and when the core's deadline has passed.
 */
#pragma once
#include "core.h"
#include "network.h"
#include "pacer.h"

#define POSTPONED_S 1e-3 /* a deadline that is later by less keeps the old timer */

struct host {
    int64_t attentive; /* whether each packet calls `news` */
    int64_t failed;    /* whether the core has failed */
    struct machine *machine;
    struct core *core;
    struct link *link;
    double packet_s; /* of CPU time, a packet */
    int64_t news, timer; /* Python's calls */
    struct pacer pacer;    /* its packets are frames */
    int64_t making;        /* packets being made */
    struct frames leaving; /* made packets that leave together with those */
    int64_t rings; /* whether the pacer's timer is set */
    double due_s;  /* of the deadline's timer; INFINITY: not set */
    int64_t timers; /* timers set; only the last one counts */
};

/* At most `mbps` leave, 0: unpaced, with bursts and timer delays as in pacer_open(). */
struct host *host_open(struct machine *machine, struct core *core, struct link *link, double packet_s, double mbps,
                       int64_t burst_bytes, double late_s, int64_t news, int64_t timer);
void host_close(struct host *host);
/* Change the rate, as pacer_rate() does. */
void host_rate(struct host *host, double mbps, int64_t burst_bytes, double late_s);
/* The number of packets that wait for the pacer. */
int64_t host_queued(const struct host *host);
/* Send the core's packets; its other instructions wait. */
void host_send(struct host *host);
/* Have `timer` called when the core's deadline has passed, or a little before. */
void host_set_timer(struct host *host);
void host_from(struct host *host, struct link *link);
/* Receive a packet. */
void host_put(struct host *host, const uint8_t *header, const uint8_t *body, int64_t size);
