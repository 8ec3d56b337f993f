// The switch without its program: ports, queues, groups, rings, statistics.
#ifndef KOFN_CORE_H
#define KOFN_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "faults.h"
#include "gso.h"
#include "program.h"
#include "queues.h"

#define PORTS FAULT_PORTS   // port numbers are bit<9>
#define GROUPS 65536
#define BATCH 32            // packets received at once
#define RECEIVED_BYTES 66560  // bytes of a receive buffer: a coalesced packet; an odd number of cache lines with HEADROOM
#define HEADROOM 64         // before the buffer: a VLAN tag that the kernel removed is restored there
#define SEGMENTS_BYTES (4u << 20)  // the frames of received coalesced packets
#define SEND_QUEUE 1024     // packets sent at once
#define ARENA_BYTES (8u << 20)  // headers of the packets waiting to be sent
#define RING_BYTES (4u << 20)
#define SOCKET_BUFFER (32 << 20)


struct port {
    int socket;  // -1: not open
    int is_file;  // the port has a pcap file instead of an interface
    int index;   // the interface's index
    uint32_t mtu;  // of the interface, when it was opened
};

// A port's frames and their bytes. The file of core_share_counts() has these numbers, too.
struct port_counts {
    uint64_t received_packets, received_bytes, sent_packets, sent_bytes;
};

// A queue of byte strings, each after its 32-bit length; a full queue refuses further strings.
struct ring {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    uint8_t *bytes;
    uint64_t head, tail;
};

#define PARTS_MAX 3

struct sending {
    uint32_t port, count;  // count: the number of parts
    struct iovec parts[PARTS_MAX];
};

// The headers before the first coalesced packet's bytes.
struct coalesced_head {
    struct virtio_net_hdr offload;
    uint8_t headers[GSO_HEADERS];
};

// Messages of one or more frames each, for a socket with the option PACKET_VNET_HDR.
struct coalesced {
    struct mmsghdr messages[SEND_QUEUE];
    uint32_t frames[SEND_QUEUE];  // of each message
    struct iovec parts[SEND_QUEUE * (PARTS_MAX + 1)];
    struct coalesced_head heads[SEND_QUEUE / 2];
    uint32_t parts_count, heads_count;
    uint32_t most;  // bytes of the frames in a message; 0: one frame a message
};

// The packet thread's time without waiting, in nanoseconds.
struct packet_time {
    uint64_t receiving, processing, sending;
};

// The capture files of the ports.
struct captures {
    int files[FAULT_DIRECTIONS][PORTS];   // 1 + the descriptor; 0: none
    int errors[FAULT_DIRECTIONS][PORTS];  // the error number that ended a capture; 0: none
};

struct core {
    struct services services;
    pthread_mutex_t turn, state;  // see core_lock
    struct instance *instance;
    uint32_t swaps;  // number of swaps of the instance
    struct port ports[PORTS];
    struct port_counts own_counts[PORTS], *counts;  // counts: own_counts, or a file's memory
    void (*process)(struct core *core, uint32_t port, const uint8_t *packet, uint32_t length);  // core_process
    int cpu_port;  // -1: none
    void (*port_down)(uint32_t port);  // called by the packet thread without the lock
    struct group groups[GROUPS];
    struct session sessions[SESSION_MAX + 1];
    uint64_t drops[DROP_REASONS];
    struct ring digests, reports, packet_ins;
    uint64_t started_ns;
    uint64_t seed;

    uint32_t queued;
    struct sending queue[SEND_QUEUE];
    uint8_t *arena;
    uint32_t arena_used;
    int borrowed;  // a queued packet has bytes outside of the arena, in a received packet
    struct ring *collect;  // inject: outputs go here instead of to the ports

    pthread_t thread;
    int running, wake;  // wake: an eventfd
    struct packet_time time;
    atomic_int stopping;
    uint8_t *buffers;   // BATCH buffers of HEADROOM + RECEIVED_BYTES bytes
    uint8_t *segments;
    uint32_t segments_used;
    struct coalesced *coalesced;  // NULL: the kernel does not know coalesced packets
    struct mmsghdr messages[SEND_QUEUE > BATCH ? SEND_QUEUE : BATCH];
    struct iovec vectors[BATCH];
    uint8_t control[BATCH][64];  // the kernel's control message for each packet: its VLAN tag
    int bypass;    // skips the interfaces' queueing disciplines
    int outgoing;  // also receive the packets that other processes send out of the interfaces
    struct faults *faults;  // NULL: none are injected
    struct captures *captures;  // NULL: none
    struct trace *trace;  // NULL: none
    struct queues *queues;
};

// lock.c
void core_lock(struct core *core);
void core_unlock(struct core *core);
void core_wake(struct core *core);
uint64_t core_clock_ns(void);

// frames.c
void core_set_buffer(int socket, int force, int option, int bytes);
void core_size_buffer(struct core *core, uint32_t port);
void core_send_frame(struct core *core, uint32_t port, const uint8_t *bytes, uint32_t length);
void core_send_messages(struct core *core, uint32_t port, const uint64_t *lengths, uint32_t count);
int core_unblock(struct core *core, uint32_t port);

// sending.c
uint8_t *core_reserve(struct core *core, uint32_t bytes);
void core_emit(struct core *core, uint32_t port, const uint8_t *head, uint32_t head_bytes, const uint8_t *tail,
               uint32_t tail_bytes, const uint8_t *payload, uint32_t payload_bytes);
void core_flush(struct core *core);

// core.c
void core_process(struct core *core, uint32_t port, const uint8_t *packet, uint32_t length);
void core_arrived(struct core *core, uint32_t number, const uint8_t *frame, uint32_t length);

// Return whether the frames of a port in one direction go through faults_pass.
static inline int faults_at(const struct core *core, enum fault_direction direction, uint32_t port) {
    return __builtin_expect(core->faults != NULL, 0) && core->faults->lanes[direction][port].active;
}

static inline int captures_at(const struct core *core) { return __builtin_expect(core->captures != NULL, 0); }

void captured(struct core *core, enum fault_direction direction, uint32_t port, const struct iovec *parts,
              size_t count);
void captures_close(struct core *core);
void trace_free(struct core *core);
void counts_free(struct core *core);
int pcap_write(int file, const struct iovec *parts, size_t count);

int ring_open(struct ring *ring);
void ring_close(struct ring *ring);
int ring_put(struct ring *ring, const struct iovec *parts, int count);
int64_t ring_take(struct ring *ring, uint8_t *to, uint64_t space, int timeout_ms);

#endif
