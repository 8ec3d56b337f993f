// The queues between ingress and egress, which exist if the program or the control plane uses them. As in targets/simple_switch
// of behavioral-model, each port has one queue for each priority. A queue holds QUEUE_DEPTH packets by default. A queue with a
// rate, in packets a second, is served at this rate. The queue of the highest priority is served first.
//
// A packet waits while its port's interface does not take packets. Otherwise, and without rates, its egress follows its
// ingress at once.
#ifndef KOFN_QUEUES_H
#define KOFN_QUEUES_H

#include <poll.h>
#include <sys/uio.h>
#include <time.h>

#include "program.h"

#define QUEUE_PRIORITIES 8  // a priority is bit<3>
#define QUEUE_PORTS 512
#define QUEUE_DEPTH 64

struct queued {
    struct queued *next;
    struct departure departure;
    uint64_t queued_us, due_ns;
    uint8_t bytes[];  // the state, then the packet
};

struct queue {
    struct queued *first, **last;
    uint32_t count, depth;
    uint64_t interval_ns, last_due_ns;  // 0: no rate
};

// A frame that its interface did not take.
struct blocked {
    struct blocked *next;
    uint32_t length;
    uint8_t bytes[];
};

struct queues {
    uint32_t priorities;
    int configured;  // a rate or depth was set
    uint32_t count;  // waiting packets
    struct queue queues[QUEUE_PORTS][QUEUE_PRIORITIES];
    uint32_t depths[QUEUE_PORTS];  // packets of each port
    struct blocked *blocked[QUEUE_PORTS];
};

int core_open_queues(struct core *core, uint32_t priorities);
void core_set_queue(struct core *core, int port, int priority, int64_t depth, int64_t rate_pps);

void queues_free(struct core *core);
void queues_clear(struct queues *queues);
void queues_program(struct core *core);
void queues_serve(struct core *core);
void queues_release(struct core *core);
short queues_events(const struct core *core, uint32_t port);
const struct timespec *queues_timeout(struct core *core, const struct timespec *timeout, struct timespec *own);

#endif
