// The interface between a generated program and the runtime.
//
// Integers of up to 64 bits are native; wider ones are arrays of 64-bit limbs, least significant first. Table keys and
// action parameters are limbs throughout: each field takes (width + 63) / 64 of them.
#ifndef KOFN_PROGRAM_H
#define KOFN_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

struct core;

#define PACKET_MAX (1 << 17)  // bytes of the longest packet for a program, which fits into a reader of the rings
#define SESSION_MAX 0x7fffu    // the largest clone session number
#define SESSION_SET 0x8000u    // added to a number: marks a session, even number 0

enum drop_reason {
    DROP_NO_PROGRAM,       // nothing is loaded
    DROP_INGRESS,          // the program asked for it in ingress
    DROP_EGRESS,           // the program asked for it in egress
    DROP_UNKNOWN_PORT,     // sent to a port that is not configured
    DROP_UNKNOWN_GROUP,    // sent to a multicast group that is not configured
    DROP_RECEIVED_TOO_LONG,  // longer than the receive buffers
    DROP_SENT_TOO_LONG,    // longer than the interface's MTU
    DROP_SEND_QUEUE_FULL,  // the interface did not take the packet
    DROP_SEND_FAILED,      // the interface refused the packet for another reason
    DROP_DIGEST_RING_FULL,  // a digest, not a packet: the control plane is too slow
    DROP_PACKET_IN_RING_FULL,
    DROP_ASSERTION,        // an assert or assume of the program failed
    DROP_DELAY_QUEUE_FULL,  // too many frames waited for an injected delay
    DROP_COPY_QUEUE_FULL,  // a clone, a resubmitted or a recirculated packet: too many waited
    DROP_TOO_MANY_PASSES,  // a copy: too many passes come from one received packet
    DROP_PRIORITY,         // a priority that no queue has
    DROP_REPORT_RING_FULL,  // a message for the log, not a packet
    DROP_QUEUE_FULL,       // the queue before egress
    DROP_REASONS
};

struct count {
    uint64_t packets, bytes;
};

// A row: limbs holds the match (see table.h), then the parameters, then the table's extra limbs.
struct entry {
    struct count count;
    uint32_t action;
    uint32_t taken;  // whether this place has an entry
    uint64_t limbs[];
};

enum table_kind { TABLE_EXACT, TABLE_ORDERED };

struct table_shape {
    enum table_kind kind;
    uint32_t key_limbs;        // limbs of a look-up's key
    uint32_t stored_limbs;     // limbs of an entry's match
    uint32_t parameter_limbs;  // the most limbs of an action's parameters
    uint32_t capacity;         // entries
    uint32_t extra_limbs;      // after the parameters: the time of the last hit, a struct meter
};

// The action of an indirect table's entry; its parameter is the number of the member or group.
enum indirect { INDIRECT_MEMBER, INDIRECT_GROUP };

struct member {
    uint64_t action;  // its place in the profile's list
    uint64_t limbs[];
};

struct choices {  // a group: its members' numbers, each as often as its weight
    uint32_t size;
    uint32_t *members;
};

struct profile_shape {
    uint32_t parameter_limbs;  // the most limbs of an action's parameters
};

struct profile {
    size_t stride;  // bytes from member to member
    uint8_t *members;
    uint32_t member_room, group_room;
    struct choices *groups;
};

struct register_shape {
    uint32_t cell_bytes;
    uint32_t size;
};

struct table {
    struct table_shape shape;
    size_t stride;          // bytes from entry to entry
    uint8_t *entries;
    struct entry *miss;     // the default entry
    uint32_t *index;        // hash slots: an entry's number + 1, or 0; in an ordered table the first entry of a chain
    uint32_t index_mask;
    uint32_t used;          // entries in the table
    uint32_t lowest;        // all places below this place are taken
    size_t mask_stride;     // ordered: bytes from one mask to the next
    uint8_t *masks;         // ordered: the different masks of the entries' keys
    uint32_t *mask_order;   // ordered: the masks in use, the one with the best entry first
    uint32_t masks_used;
};

struct meter;

// Keys for a parser's select: a hash table of `mask` + 1 cells, each a word that is 0 when the cell is free, and the
// key.
struct value_set {
    uint64_t *cells;
    uint32_t mask;
};

struct instance {
    const struct program *program;
    struct table *tables;
    struct value_set *value_sets;
    uint8_t **registers;
    struct count **counters;
    void *state;
    struct meter **meters;
    struct profile *profiles;
};

struct replica {
    uint16_t port, instance;
};

struct group {
    uint32_t size;
    struct replica *replicas;
};

// The destinations of clones; `targets` is `own`, or a multicast group. A `length` other than 0 cuts the clones to this number
// of bytes.
struct session {
    const struct group *targets;
    uint32_t length;
    struct group own;
};

// A packet that leaves its queue: the program's saved state, and the depth and time of its stay.
struct departure {
    const void *state;
    const uint8_t *packet;
    uint32_t port;
    uint32_t depth, depth_left;  // packets that waited for the port when this packet came, and that wait now
    uint32_t waited_us;
};

struct program {
    uint32_t tables, registers, counters;
    const struct table_shape *table_shapes;
    const struct register_shape *register_shapes;
    const uint32_t *counter_sizes;
    size_t state_bytes;
    void (*process)(struct core *core, struct instance *instance, uint32_t port, const uint8_t *packet,
                    uint32_t length);
    uint32_t value_sets;
    const uint32_t *value_set_limbs;  // of a key
    uint32_t meters, profiles;
    const uint32_t *meter_sizes;
    const struct profile_shape *profile_shapes;
    void (*depart)(struct core *core, struct instance *instance, const struct departure *departure);
    int queued;  // the program reads its packets' time in queues
};

// The runtime's functions for a program; the first member of struct core.
struct services {
    uint64_t flushes;  // increases when reserved memory becomes free again
    uint64_t arrived_us;  // arrival of the present batch: reading the clock for each packet takes too long
    uint64_t (*now_us)(struct core *core);
    // Reserve room for bytes to emit, and for one more packet in the queue. This may flush, which frees emitted bytes; reserved
    // bytes that were not emitted are gone with the next call of reserve in any case.
    uint8_t *(*reserve)(struct core *core, uint32_t bytes);
    void (*emit)(struct core *core, uint32_t port, const uint8_t *head, uint32_t head_bytes, const uint8_t *tail,
                 uint32_t tail_bytes, const uint8_t *payload, uint32_t payload_bytes);
    void (*drop)(struct core *core, enum drop_reason reason);
    const struct group *(*group)(struct core *core, uint32_t id);
    const struct session *(*session)(struct core *core, uint32_t id);
    void (*digest)(struct core *core, uint32_t list, const uint64_t *limbs, uint32_t count);
    uint64_t (*random)(struct core *core);
    void (*report)(struct core *core, uint32_t message, const uint64_t *limbs, uint32_t count);
    // Queue a packet between ingress and egress; NULL: egress follows at once. State and packet are copied for `depart`.
    void (*enqueue)(struct core *core, uint32_t port, uint32_t priority, const void *state, uint32_t state_bytes,
                    const uint8_t *packet, uint32_t length);
    const struct tracer *tracer;  // for programs compiled with a trace: see trace.h
};

static inline struct services *services(struct core *core) { return (struct services *)core; }

#endif
