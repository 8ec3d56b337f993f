/* The worker's side of the protocol, without I/O.
 *
 * Events go in (an iteration begins, a block is ready, a packet came, time passed, a peer answered); instructions come out
 * (send a packet, deliver a result, encode again, ask the peers, the iteration is complete). No sockets, no clock, no
 * threads: time is whatever the caller passes as `now`, in seconds. The engine, the simulator and the tests drive the same.
 *
 *     begin --> block open --contribute--> waiting --window--> in flight --RESULT / LATE--> closed
 *                  |                                              | timer: send again
 *                  +---------------- RESULT / LATE ---------------+ FORMAT_MISMATCH: encode again; STALE: ask peers
 *
 * The blocks of all iterations that are sent are numbered one after another, by every worker alike. Number q is summed in
 * slot q modulo slots. It may be sent as soon as number q - window is closed here, whichever order its neighbours come in;
 * `window` divides `slots` at least twice. So where every worker is needed for a sum, no slot gets its next block before all
 * workers have the result of the last one: whoever sends q has closed q - window, so all have sent that, so all have closed
 * q - 2 window, and so on down to q - slots.
 *
 * Blocks may also be owned: each is one worker's alone, closes with its contribution (k = 1), and comes to all. The others
 * send nothing for it, and ask for it when it does not come. Of `span` blocks that follow each other each worker owns one or
 * more; number q may be sent once all up to q - reach are closed, with reach = slots / 2 + 1 - span. So no slot gets its next
 * block before all workers have the last one: whoever sends q has closed all up to q - reach, among the last span of them one
 * of each worker, who had then closed all up to q - 2 reach - span + 1, which is q - slots or later. (What an iteration sends
 * first follows one that is closed here as a whole, whose last blocks say the same.)
 *
 * A worker contributes to a block up to PARTS times, each time with another part, which counts among the k or does not (a
 * late gradient that is merged). A block closes by its result, whoever is in it. Results of later iterations that arrive
 * early are kept until their iteration begins; then everything that others have already finished closes at once. An
 * iteration has the blocks that it is begun with, the same for every worker.
 *
 * What a slot sums at, scale and lanes, its first contribution decides; it stays so as long as the slot has its block. So
 * a FORMAT_MISMATCH, which tells it, is always true, however late it comes and whichever attempt it answers: a request
 * that is as the slot wants it is left alone, any other one is made anew.
 *
 * When the switch has lost its slots a new generation of them begins: after regroup() nothing is sent and no answer of an
 * earlier generation is taken; after resume(), when every worker has heard of it and has fetched what the others hold,
 * everything that is still open is sent again. Without that, a block that one worker has a result of could be summed again
 * for the others.
 *
 * Functions that can fail return 0, or -1 with a sentence in `error`; a request is block * PARTS + part, PULLs are part 0's.
 */
#pragma once
#include "history.h"
#include "in_flight.h"

enum { LANE_CODES = 5, PLANES_MOST = 7, ERROR_BYTES = 1024 };

/* Bits of a lane, by its code; of the last one lanes are votes. */
static const int64_t LANE_WIDTHS[LANE_CODES] = {32, 16, 8, 4, 1};

/* As BlockLayout: blocks of a gradient, of so many words in lanes of `widest` bits; 0 summary words: no summary block;
 * votes are answered with so many planes. */
struct layout {
    int64_t blocks, words, widest, summary_words, planes;
};

enum instruction_kind { SEND, DELIVER, COMPLETE, ENCODE_AGAIN, ASK_PEERS };

struct instruction {
    int32_t kind;
    int32_t part, counts, scale, lanes; /* of ENCODE_AGAIN */
    int32_t hint;                       /* of DELIVER: lanes that who closed it uses by now, -1: as planned */
    int64_t iteration, block;
    double time_s;         /* of DELIVER: when the answer came */
    int64_t launch, size;  /* of SEND: which attempt it is (core_mark_sent_at), bytes of its values */
    const uint8_t *values; /* of SEND */
    uint8_t header[KOFN_HEADER_BYTES]; /* of SEND, without checksum */
};

/* What happened to this worker's blocks, for the metrics. */
struct statistics {
    int64_t retransmissions, pulls, stale, refused;
    int64_t foreign;          /* packets of another job, or that only workers send */
    int64_t other_generation; /* packets from before a regroup */
    int64_t regroups;
    int64_t wire_bytes; /* of values that were sent, again and again where need was */
};

/* What is sent of a block; values stay where they are until the block has closed, or is contributed anew. */
struct packed {
    const uint8_t *values;
    int32_t size; /* of the values, in bytes */
    int32_t block, scale, lanes;
    uint32_t weight;
};

/* An answer of the switch. The values are in a buffer of core_buffer(), as far as there is room, which is the core's if it has
 * set `taken`. What has more values than any block of this worker is another configuration's, and no result is taken. */
struct packet {
    struct header header;
    uint8_t *values;
    int32_t size, taken;
};

/* A contribution that waits for the window. */
struct waiting {
    const uint8_t *values; /* NULL: none waits */
    int32_t size, scale, lanes, flags, counts;
    uint32_t weight;
};

struct news {
    int64_t block;
    int32_t hint, to_again;
};

/* Whom a worker has asked about a block that does not close: a PULL with a number of words that the block never has is
 * FORMAT_MISMATCH as long as the slot has the block, and says who is in it. */
struct slot_query {
    int32_t asked, answered; /* up to `members` as in slot_query.py */
    int64_t block;
    uint64_t members[KOFN_PARTS];
    struct header header;
};

/* How long a worker's gradient waits in its link. Behind the last packet that leaves without waiting for other workers goes a
 * PULL as a slot query's, which the switch answers whoever is in the block: as soon as all before it is through. */
struct link_probe {
    int32_t wanted, asked;
    int32_t done; /* in this iteration */
    struct header header;
    double sent_s, share; /* when it leaves; the part of the gradient that left before it */
    int64_t left, last;   /* packets that have left in this iteration for the first time; the request of the last one */
    double wait_s;        /* of the last answer */
    int32_t fresh;        /* it was not taken yet */
};

struct core {
    /* what callers look at, in the order of core.py's STATE */
    int64_t iteration;  /* 0 before the first */
    int64_t newest;     /* latest iteration of which any result was seen */
    int64_t generation; /* of the slots that this worker speaks of */
    int64_t regrouping; /* between regroup() and resume() */
    int64_t k;          /* in force in the newest iteration with a result; 0: not known */
    int64_t count;      /* of the blocks that the iteration sends */
    int64_t open_count, waiting_count, instructions_count;
    int64_t urgent_count; /* of the instructions, but for DELIVER */
    int64_t given; /* the latest iteration that all workers are known to have given to: they have all sums before */

    struct layout layout;
    int64_t total; /* blocks with the summary block */
    int64_t slots, window;
    uint64_t everyone; /* bitmap of ranks; 0: sums are kept whoever is in them */
    int32_t job, rank;

    /* the current iteration */
    int32_t planned;    /* code of the lanes planned for all but the summary block */
    int32_t *blocks;    /* those that it sends, ascending */
    int64_t first;      /* number of its first block, among all that were ever sent */
    int64_t closed;     /* so many blocks from the first on are closed */
    int64_t reach;      /* a block may leave once the one so many places before is closed */
    const int64_t *owner; /* by block: whose it is alone; NULL: the blocks are sums */
    const int64_t *recipient; /* by block: who gets its sum; NULL: all */
    int64_t reached;      /* of owned blocks: so many have left, or are expected, or may */
    int32_t *place;     /* by block: among those that it sends, -1: it is not */
    uint8_t *open;      /* by block */
    int8_t *slot_lanes; /* by block: what its slot has said that it sums in, -1: nothing */
    int64_t words[LANE_CODES]; /* of a block but the summary block, by the code of its lanes; 0: not allowed */
    struct iteration_results *results; /* NULL before the first */

    struct waiting *waiting; /* by request */
    uint8_t *launched;       /* by request: whether it was ever sent in this iteration */
    struct in_flight in_flight;
    struct history history;
    struct slot_query query;
    struct link_probe probe;
    struct statistics statistics;

    struct news *news; /* current blocks that answers which came together have closed */
    int64_t news_count;
    int32_t any_news; /* or results of later iterations */

    struct instruction *instructions;
    int64_t instructions_capacity;
    int64_t *due; /* room for all requests */
    uint8_t *zeros; /* a PULL's values */
    char error[ERROR_BYTES];
};

/* NULL without memory. `slots` of the job, a multiple of 2 * `window`; results of the last `keep` iterations stay for peers,
 * who was in them for `keep_members`. `everyone`: bitmap of the job's ranks; once they all are in a sum of the current
 * iteration, with their first parts, those of iterations before are forgotten; 0: they stay. */
struct core *core_open(int32_t job, int32_t rank, const struct layout *layout, int64_t slots, int64_t window, double rto_s,
                       int64_t keep, int64_t keep_members, uint64_t everyone);
void core_close(struct core *core);

/* Start the next iteration; closes what others have already closed and pulls the rest of it. `blocks`, ascending, the
 * summary block among them if it is sent, the first of which is number `first` of all; `lanes`: planned for them. All the same
 * for every worker. */
int core_begin(struct core *core, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
               int32_t lanes);
/* Leave the open blocks to the others and begin a later iteration: the parameters came from a peer. */
int core_jump(struct core *core, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
              int32_t lanes);
/* This part of the worker's contribution to some blocks is ready; nothing happens where they have closed. `counts`:
 * whether it is one of the k. `uses`: lanes that the worker sends in by now, -1: those of each. */
int core_contribute(struct core *core, const struct packed *ready, int64_t count, double now, int32_t part,
                    int32_t counts, int32_t uses);
/* Answers of the switch that have come together. */
int core_packets_in(struct core *core, struct packet *packets, int64_t count, double now);
/* A result from a peer, whose values are copied; one of which only the members are known says that its iteration is over. */
int core_result_in(struct core *core, int64_t iteration, int64_t block, const struct result *result, double now);
/* Send again what has waited too long. */
int core_timer(struct core *core, double now);
/* Ask the switch who is in the first open block; `query` has what it answers. Nothing while regrouping. */
int core_ask_slot(struct core *core);
/* From now on probe the link in each iteration with sums of several packets, where blocks have room for the answer. */
void core_probe_link(struct core *core);
/* How long a gradient's last packet waits in the link: the time from its departure to the switch's answer, less the shortest time
 * to any answer, for a whole gradient. The latest, if it was not taken before; else how long the present probe has waited, if
 * that is longer; else -1. */
double core_take_link_wait(struct core *core, double now);
/* What a SEND said to send waits in this host and leaves then: its answer is not waited for before. */
void core_mark_sent_at(struct core *core, int64_t request, int64_t launch, double at_s);
/* In this iteration gradients come in pieces, all workers': a silence may be their computing. `level`, of each block of the
 * gradient: those of one level leave in the same order everywhere; NULL: all do. It stays there until the next begins. */
void core_in_pieces(struct core *core, const int64_t *level);
/* The blocks of the iteration that has just begun are owned, `owner` of each: of `span` that follow each other, and of the
 * last ones, every worker owns one or more. It stays there until the next begins. */
int core_owned(struct core *core, const int64_t *owner, int64_t span, double now);
/* In the iteration that has just begun the sum of each block goes to its `recipient` alone; of the others the results say who
 * is in it, and have no values. It stays there until the next begins. */
void core_received(struct core *core, const int64_t *recipient);
/* Take back what waits of these requests and was never sent, to be encoded anew; of others a result may be on its way: they
 * become -1. */
void core_withdraw(struct core *core, int64_t *requests, int64_t count);
/* Speak of these slots, where none newer are known: before the first iteration. */
void core_enter(struct core *core, uint32_t generation);
/* This iteration has begun somewhere, so all before it are complete: they can be pulled. */
void core_others_reached(struct core *core, int64_t iteration);
void core_regroup(struct core *core, uint32_t generation);
int core_resume(struct core *core, double now);

/* Whether results of a later iteration were seen. */
int core_left_behind(const struct core *core);
double core_deadline_s(const struct core *core);
/* What a packet of so many bytes of values takes of a link, with its frame: as its answer, if that is longer and comes here.
 * Of sums for one each worker gets one of n, whose planes are at most n packets. */
int64_t core_link_bytes(const struct core *core, const uint8_t *header, int64_t size);
uint8_t *core_buffer(struct core *core);
void core_release(struct core *core, uint8_t *buffer);

/* -- for callers that are not C */

/* An answer whose values are copied; its results are noted when core_packets_done() is called. */
int core_datagram_in(struct core *core, const uint8_t *header, const uint8_t *values, int64_t size, double now);
int core_packets_done(struct core *core, double now);
/* What is to be done since the last time, in order, at most `room` of it; of each DELIVER its result. How many. */
int64_t core_take(struct core *core, struct instruction *into, struct result *results, int64_t room);
/* All of `instructions` is done, by someone who has looked at them. */
void core_done(struct core *core);
const char *core_error(const struct core *core);

/* Where things are that stay where they are. */
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
