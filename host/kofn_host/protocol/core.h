/* The worker's side of the protocol, without I/O.
 *
 * Events go in (an iteration begins, a block is ready, a packet arrives, time passes, a peer answers); instructions come out
 * (send a packet, deliver a result, encode again, ask the peers, the iteration is complete). There are no sockets, clocks or
 * threads: the caller passes the time as `now`, in seconds. The engine, the simulator and the tests drive the same code.
 *
 *     begin --> block open --contribute--> waiting --window--> in flight --RESULT / LATE--> closed
 *                  |                                              | timer: retransmit
 *                  +---------------- RESULT / LATE ---------------+ FORMAT_MISMATCH: encode again; STALE: ask peers
 *
 * All workers number the sent blocks of all iterations alike, one after another. Number q is summed in slot q modulo slots.
 * A worker may send number q once it has closed number q - window, even if other blocks are open; `window` divides slots / 2.
 * So if a sum needs every worker, no slot gets its next block before all workers have the last result: a worker that sends q
 * has closed q - window, so all have sent q - window, so all have closed q - 2 window, and so on down to q - slots.
 *
 * Blocks may also be owned: only the owner contributes to the block, the owner's contribution closes the block (k = 1), and all
 * workers get the result. The other workers send nothing for the block, and PULL the block when its result is overdue. Among
 * any `span` consecutive blocks each worker owns at least one block. Number q may be sent once all numbers up to q - reach are
 * closed, with reach = slots / 2 + 1 - span. So no slot gets its next block before all workers have the last result: a worker
 * that sends q has closed all numbers up to q - reach. The last `span` of these blocks include a block of each worker. When
 * that worker sent this block, it had closed all numbers up to q - 2 reach - span + 1 at least, that is q - slots or later.
 * (The first blocks of an iteration follow a completely closed iteration, whose last blocks prove the same.)
 *
 * A worker contributes up to PARTS parts to a block. A part counts among the k, or it does not (a merged late gradient). A
 * result closes a block even without a part of this worker. Results of later iterations that arrive early are kept until their
 * iteration begins; then the blocks that others have finished close at once. All workers begin an iteration with the same
 * blocks.
 *
 * The first contribution decides a slot's scale and lanes, as long as the slot has the block. So a FORMAT_MISMATCH, which
 * reports them, stays true however late it arrives and whichever attempt it answers. A request that matches the slot's format
 * stays as it is; any other request is encoded again.
 *
 * When the switch has lost its slots, a new generation of slots begins. After regroup() nothing is sent, and answers of an
 * earlier generation are dropped. resume() follows when every worker has regrouped and has fetched the others' results;
 * resume() retransmits everything that is still open. Without this agreement, a block could be summed again for some workers
 * after another worker has the block's first result.
 *
 * Functions that can fail return 0, or -1 with a sentence in `error`. A request's number is block * PARTS + part; a PULL has
 * the number of part 0.
 */
#pragma once
#include "history.h"
#include "in_flight.h"
#include "layout.h"

enum { ERROR_BYTES = 1024 };

enum instruction_kind { SEND, DELIVER, COMPLETE, ENCODE_AGAIN, ASK_PEERS };

struct instruction {
    int32_t kind;
    int32_t part, counts, scale, lanes; /* of ENCODE_AGAIN */
    int32_t hint;                       /* of DELIVER: the current lanes of the worker that closed the block, -1: as planned */
    int64_t stale_in; /* of ASK_PEERS: the generation whose slot of the block has a later block, -1: none is known */
    int64_t iteration, block;
    double time_s;         /* of DELIVER: when the answer came */
    int64_t launch, size;  /* of SEND: number of the launch (core_mark_sent_at), negative for a repetition; bytes of its values */
    const uint8_t *values; /* of SEND */
    uint8_t header[KOFN_HEADER_BYTES]; /* of SEND, without checksum */
};

/* Counters of this worker, for the metrics. */
struct statistics {
    int64_t retransmissions, pulls, stale, refused;
    int64_t foreign;          /* packets of another job, of a kind that only workers send, or of an impossible iteration */
    int64_t other_generation; /* packets from before a regroup */
    int64_t regroups;
    int64_t wire_bytes; /* bytes of sent values, including retransmissions */
};

/* A block's contribution; its values must stay in place until the block closes or is contributed again. */
struct packed {
    const uint8_t *values;
    int32_t size; /* bytes of values */
    int32_t block, scale, lanes;
    uint32_t weight;
};

/* An answer of the switch. Its body, the bitmaps of a tree's racks and the values, is in a buffer of core_buffer(), truncated
 * to the buffer's size; if the core sets `taken`, the core owns the buffer. An answer with more values than any block comes
 * from another configuration, and is never taken. */
struct packet {
    struct header header;
    uint8_t *body;
    int32_t size, taken;
};

/* A contribution that waits for the window. */
struct waiting {
    const uint8_t *values; /* NULL: no contribution waits */
    int32_t size, scale, lanes, flags, counts;
    uint32_t weight;
};

struct news {
    int64_t block;
    int32_t hint, to_again;
};

/* A question about a block that does not close: a PULL with a number of words that the block never has. As long as the slot has
 * the block, the switch answers FORMAT_MISMATCH with the block's members. */
struct slot_query {
    int32_t asked, answered;
    int64_t block;
    uint64_t members[KOFN_PARTS];
    struct header header;
};

/* How long packets wait in a worker's link: the time from the probe to its answer, minus the shortest time to any answer. */
struct link_wait {
    double wait_s;     /* of a gradient's last packet; of the packets of earlier iterations alone, if `before_all` */
    double sent_s;     /* when the probe left */
    double passed_s;   /* when the probe had passed the link */
    double sent_bytes; /* what this worker's pacer had put on the link by then, the probe included */
    double before_all; /* whether the probe left before the iteration's packets */
    double answered;   /* 0: the wait is the time until now, which is shorter */
    double share;      /* of the gradient that left before the probe: `wait_s` is the probe's own wait divided by `share` */
};

/* Measures how long a worker's gradient waits in its link. A PULL like the PULL of a slot query follows the last packet that
 * leaves without waiting for other workers. The switch answers the PULL at once, whatever the block's members are, so the
 * answer comes when all packets before the PULL have passed. In an iteration in which late gradients leave, packets may always
 * wait for the pacer, so the probe leaves before them and measures what the link still holds of earlier iterations. */
struct link_probe {
    int32_t wanted, asked;
    int32_t done; /* in this iteration */
    int32_t late; /* whether late gradients have left in this iteration */
    struct header header;
    struct header before; /* a PULL of a block of the previous iteration, which the switch answers; 0 words: there is none */
    int64_t sent_in;      /* the iteration in which the probe left */
    double sent_s, share; /* when the probe leaves; the share of the gradient that left before the probe */
    int64_t left, last;   /* packets that have left in this iteration, without retransmissions; the last packet's request */
    uint32_t weight;      /* the last packet's */
    int64_t sent_bytes;   /* what the pacer had put on the link when the probe left */
    int32_t before_all;   /* whether the probe leaves before the iteration's packets */
    struct link_wait waited; /* measured by the last answer */
    int32_t fresh;           /* `waited` was not taken yet */
};

struct core {
    /* fields that callers read */
    int64_t iteration;  /* 0 before the first */
    int64_t newest;     /* the latest iteration with a known result */
    int64_t generation; /* of the slots in use */
    int64_t regrouping; /* between regroup() and resume() */
    int64_t follows;    /* whether results come from the peers */
    int64_t k;          /* of the newest iteration with a result; 0: not known */
    int64_t count;      /* blocks that the iteration sends */
    int64_t open_count;
    int64_t waiting_count; /* contributions that count among the k and wait for the window */
    int64_t instructions_count;
    int64_t urgent_count; /* instructions other than DELIVER */
    int64_t given; /* the latest iteration to which all workers are known to have contributed: they have all earlier sums */

    struct layout layout;
    int64_t total; /* blocks, including the summary block */
    int64_t slots, window;
    uint64_t everyone; /* bitmap of the ranks of each rack; 0: never forget sums early */
    int32_t job, rank;
    int32_t racks, rack_workers; /* 1 rack: one switch */

    /* the current iteration */
    int32_t planned;    /* code of the lanes planned for all blocks except the summary block */
    int32_t *blocks;    /* the sent blocks, ascending */
    int64_t first;      /* number of the iteration's first block among all blocks ever sent */
    int64_t closed;     /* closed blocks before the first open one, or fewer */
    int64_t reach;      /* a block may leave once the block `reach` places before it is closed */
    const int64_t *owner; /* by block: the rank of its owner; NULL: the blocks are sums */
    const int64_t *recipient; /* by block: the rank that gets its sum, KOFN_EVERYONE: all do; NULL: all get every sum */
    int64_t reached;      /* owned blocks that have left, or are expected */
    int32_t *place;     /* by block: its place in `blocks`, -1: not sent */
    uint8_t *open;      /* by block */
    int8_t *slot_lanes; /* by block: the lanes that its slot has reported, -1: none */
    int64_t words[LANE_CODES]; /* of a gradient block, by the code of its lanes; 0: not possible */
    struct iteration_results *results; /* NULL before the first */

    struct waiting *waiting; /* by request */
    int64_t waiting_all;     /* with contributions that do not count among the k */
    uint8_t *launched;       /* by request: whether it was sent in this iteration */
    struct in_flight in_flight;
    struct history history;
    struct slot_query query;
    struct link_probe probe;
    struct statistics statistics;

    struct news *news; /* current blocks closed by the current batch of answers */
    int64_t news_count;
    int32_t any_news; /* whether the batch has a result of any iteration */

    struct instruction *instructions;
    int64_t instructions_capacity;
    int64_t *due; /* room for all requests */
    uint8_t *zeros; /* a PULL's values */
    char error[ERROR_BYTES];
};

/* Return a new core; NULL without memory. The job has `slots`, a multiple of 2 * `window`. Results of the last `keep` iterations
 * stay for peers; the results' members stay for `keep_members` iterations. Each of the `racks` of a tree has equally many of the
 * `workers` (0: up to 64 at one switch). `forgets`: once a sum of the current iteration has part 0 of all workers, the sums of
 * earlier iterations are forgotten. */
struct core *core_open(int32_t job, int32_t rank, const struct layout *layout, int64_t slots, int64_t window, double rto_s,
                       int64_t keep, int64_t keep_members, int32_t workers, int32_t racks, int32_t forgets);
void core_close(struct core *core);

/* Start the next iteration: close the blocks whose results are known, and PULL the other blocks if other workers are ahead.
 * `blocks`: the sent blocks, ascending, with the summary block if it is sent; the first one has number `first`; `lanes`: the
 * planned lanes. All arguments must be the same for every worker. */
int core_begin(struct core *core, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
               int32_t lanes);
/* Abandon the open blocks and begin a later iteration: the parameters came from a peer. */
int core_jump(struct core *core, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
              int32_t lanes);
/* Contribute a part to some blocks; closed blocks are skipped. `counts`: whether the part counts among the k. `uses`: the
 * worker's current lanes, -1: the lanes of each block. */
int core_contribute(struct core *core, const struct packed *ready, int64_t count, double now, int32_t part,
                    int32_t counts, int32_t uses);
/* Handle a batch of the switch's answers. */
int core_packets_in(struct core *core, struct packet *packets, int64_t count, double now);
/* Take results of an iteration's blocks from a peer; the values are copied. A result that has members but no values says only
 * that its iteration is over. */
int core_results_in(struct core *core, int64_t iteration, const int64_t *blocks, const struct result *results, int64_t count,
                    double now);
/* Retransmit overdue requests. */
int core_timer(struct core *core, double now);
/* Ask the switch for the members of the first open block; `query` gets the answer. Do nothing while regrouping. */
int core_ask_slot(struct core *core);
/* From now on probe the link once in each iteration that sends several packets, if the answer fits a buffer. */
void core_probe_link(struct core *core);
/* Take the wait so far of an unanswered probe, if it is longer than the latest measured wait; else the latest measured wait, if
 * it was not taken yet; else return 0. */
int core_take_link_wait(struct core *core, double now, struct link_wait *taken);
/* Note that a sent packet waits in this host and leaves at `at_s`: the packet's timer starts then. */
void core_mark_sent_at(struct core *core, int64_t request, int64_t launch, double at_s);
/* Note that a slot query or a probe of this request leaves `now`, and what this worker's pacer has put on the link so far. */
void core_probe_leaves(struct core *core, int64_t request, int64_t left_bytes, double now);
/* In this iteration all workers' gradients come in pieces: during a silence the workers may be computing. `level`, one per
 * gradient block: blocks of one level leave in the same order everywhere; NULL: all blocks do. `level` must stay in place until
 * the next begin. */
void core_in_pieces(struct core *core, const int64_t *level);
/* The blocks of the iteration that has just begun are owned; `owner` has each block's rank. Among any `span` consecutive
 * blocks, and among the last ones, every worker owns at least one. `owner` must stay in place until the next begin. */
int core_owned(struct core *core, const int64_t *owner, int64_t span, double now);
/* In the iteration that has just begun, each block's sum goes only to its `recipient`; the other workers' results have the
 * members and no values. `recipient` must stay in place until the next begin. */
void core_received(struct core *core, const int64_t *recipient);
/* Withdraw the given requests that wait and were never sent, so that they can be encoded again. Set the other requests to -1:
 * their results may be under way. */
void core_withdraw(struct core *core, int64_t *requests, int64_t count);
/* Use this generation of slots unless a newer one is known; call it before the first iteration. */
void core_enter(struct core *core, uint32_t generation);
/* From now on results come from the peers, and the switch does not send results of others' contributions here: send no PULL of
 * its own accord. 0: results come from the switch. */
int core_follow(struct core *core, int32_t follows, double now);
/* Another worker has begun this iteration, so all earlier iterations are complete and can be pulled. */
void core_others_reached(struct core *core, int64_t iteration);
void core_regroup(struct core *core, uint32_t generation);
int core_resume(struct core *core, double now);

/* Whether results of a later iteration were seen. */
static inline int core_left_behind(const struct core *core) {
    return core->newest > core->iteration;
}
double core_deadline_s(const struct core *core);
/* The bytes on a link of a packet with `size` bytes of values, with its frame; the answer's bytes if these are more and every
 * worker gets the answer. If each sum goes to one of n workers, this worker gets one answer for n packets, and the planes of
 * that answer have at most the bytes of n packets. */
int64_t core_link_bytes(const struct core *core, const uint8_t *header, int64_t size);
uint8_t *core_buffer(struct core *core);
void core_release(struct core *core, uint8_t *buffer);

/* -- for callers that are not C */

/* Take an answer, whose body is copied; core_packets_done() handles the results. */
int core_datagram_in(struct core *core, const uint8_t *header, const uint8_t *body, int64_t size, double now);
int core_packets_done(struct core *core, double now);
/* Take the new instructions in order, at most `room`, with the result of each DELIVER; returns their number. */
int64_t core_take(struct core *core, struct instruction *into, struct result *results, int64_t room);
/* Clear `instructions`: the caller has followed them. */
void core_done(struct core *core);
const char *core_error(const struct core *core);

/* Addresses that never change. */
struct core_places {
    const int32_t *blocks;
    const uint8_t *open;
    const struct waiting *waiting;
    const struct statistics *statistics;
    const struct slot_query *query;
};

void core_read(const struct core *core, struct core_places *places);
/* history_next(), history_read(). */
int64_t core_next_results(const struct core *core, int64_t iteration);
int64_t core_results(const struct core *core, int64_t iteration, uint32_t *blocks, struct result *results);
