/* The engine: one thread that moves a worker's packets, and nobody else's business.
 *
 *     socket --> core --> pacer --> socket          (thread, without Python)
 *                 |
 *                 '--> instructions, news_fd readable --> whoever encodes and decodes
 *
 * The core is the thread's and its callers', one at a time: callers call the functions below, which are the core's while the
 * thread does not. What the core wants sent, the thread sends; everything else it wants is for the caller, who reads `news_fd`
 * and takes it.
 * A packet's values are read when it leaves, and only if its request was in flight as it was when the core was last looked
 * at. So they may change once the core has let go of the request and has heard of something that was received after that.
 */
#pragma once
#include "core.h"
#include "pacer.h"

/* What went over the socket: UDP payload. */
struct traffic {
    int64_t bytes_sent, bytes_received, packets_sent, packets_received;
    int64_t send_failures;
    int64_t short_packets, other_version, wrong_length, damaged; /* that came, and are no packets */
};

struct engine;

/* On a socket that is connected to the switch; NULL without memory, threads or descriptors. Up to `batch` closed blocks are
 * told together. Not paced where `mbps` is 0. The core stays its opener's, who closes it after the engine. */
struct engine *engine_open(struct core *core, int socket, int64_t batch, double mbps, int64_t burst_bytes, double late_s);
/* Stop, and join the thread; what waits is lost. The socket stays open. */
void engine_close(struct engine *engine);

/* Readable when there are instructions, or an error; when the others have left this worker behind; and when fewer packets
 * wait than was asked for. */
int engine_news_fd(const struct engine *engine);
/* As core_take(), SEND not among it: since the last time. -1: the thread has ended, engine_error() says why. */
int64_t engine_take(struct engine *engine, struct instruction *into, struct result *results, int64_t room);
const char *engine_error(const struct engine *engine);
/* Whether that is what the core said. */
int engine_error_is_cores(const struct engine *engine);
const struct traffic *engine_traffic(const struct engine *engine);
/* Packets that wait in this host for their turn to leave. */
int64_t engine_queued(const struct engine *engine);
/* Say so once, when fewer than so many contributions wait, for the pacer or the window. */
void engine_want(struct engine *engine, int64_t fewer);
/* Seconds on the clock of all times given and taken: CLOCK_MONOTONIC. */
double engine_now_s(void);

/* -- the core's, while the thread does not call it */

int engine_begin(struct engine *engine, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
                 int32_t lanes);
int engine_jump(struct engine *engine, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
                int32_t lanes);
int engine_contribute(struct engine *engine, const struct packed *ready, int64_t count, double now, int32_t part,
                      int32_t counts, int32_t uses);
int engine_result_in(struct engine *engine, int64_t iteration, int64_t block, const struct result *result, double now);
int engine_ask_slot(struct engine *engine);
void engine_withdraw(struct engine *engine, int64_t *requests, int64_t count);
void engine_enter(struct engine *engine, uint32_t generation);
void engine_others_reached(struct engine *engine, int64_t iteration);
void engine_regroup(struct engine *engine, uint32_t generation);
int engine_resume(struct engine *engine, double now);
double engine_deadline_s(struct engine *engine);
int64_t engine_next_results(struct engine *engine, int64_t iteration);
int64_t engine_results(struct engine *engine, int64_t iteration, uint32_t *blocks, struct result *results);
