// Faults injected at the ports: frames lost, duplicated, corrupted, late or out of order between interface and program.
#ifndef KOFN_FAULTS_H
#define KOFN_FAULTS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

struct core;

#define FAULT_PORTS 512
#define DELAYED_MAX 8192        // the most waiting frames; a further frame drops the frame that is due first
#define HELD_NS 20000000u       // the longest time that a frame to be reordered waits for another frame to pass it

enum fault_direction { FAULT_IN, FAULT_OUT, FAULT_DIRECTIONS };

// Rules apply one after another; times count from the first frame of the port.
struct fault_rule {
    uint32_t port, directions;  // bit 1 << direction
    double drop, duplicate, corrupt, reorder;  // probabilities
    uint64_t delay_ns, jitter_ns, from_ns, until_ns;
    uint32_t first_number, numbers;  // this rule's part of `numbers`; none: every frame
};

struct fault_counts {
    uint64_t dropped, duplicated, corrupted, delayed, reordered;
};

struct frame {
    uint64_t due_ns, order;  // frames with equal times leave in the order of arrival
    uint64_t delay_ns, own_due_ns;
    struct frame *next;
    uint32_t place;  // among the waiting frames
    uint32_t port, length;
    uint8_t direction, hold;
    uint8_t bytes[];
};

// One direction of one port.
struct lane {
    int active;         // has a rule
    uint64_t random, frames;
    struct frame *held;  // the frame that is held back, or NULL; it is also in `waiting`
    struct fault_counts counts;
};

struct faults {
    struct fault_rule *rules;
    uint32_t rule_count;
    uint32_t *numbers;
    uint64_t seed, order;
    uint32_t udp_port;  // only frames to this port are changed and counted; 0: every frame
    uint64_t started_ns[FAULT_PORTS];  // the time of the port's first frame; 0: none yet
    struct lane lanes[FAULT_DIRECTIONS][FAULT_PORTS];
    struct frame *waiting[DELAYED_MAX];  // a heap, the frame that is due first in front
    uint32_t waiting_count;
    struct frame *spent;  // delivered to the program; queued packets may refer to them
};

// Set the rules, while the thread does not run. Return 0 or a negative error number.
int core_set_faults(struct core *core, const struct fault_rule *rules, uint32_t rule_count, const uint32_t *numbers,
                    uint32_t number_count, uint64_t seed, uint32_t udp_port);
void core_fault_counts(struct core *core, uint32_t port, uint32_t direction, struct fault_counts *counts);

void faults_reset(struct core *core);
void faults_clear(struct faults *faults);
void faults_free(struct core *core);
void faults_pass(struct core *core, enum fault_direction direction, uint32_t port, const struct iovec *parts,
                 size_t count);
void faults_release(struct core *core);
void faults_recycle(struct faults *faults);
const struct timespec *faults_timeout(struct core *core, struct timespec *timeout);

#endif
