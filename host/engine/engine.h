/* The engine: one thread that moves a worker's packets, and nobody else's business.
 *
 *     socket --> cores --> pacer --> socket         (thread, without Python)
 *                  |
 *                  '--> instructions, news_fd readable --> whoever encodes and decodes
 *
 * A core is the thread's and its callers', one at a time: callers call the functions of its port below, which are the core's
 * while the thread does not. What the core wants sent, the thread sends; everything else it wants is for the caller, who
 * reads `news_fd` and takes it.
 * What is for the caller the thread can do as well, as long as it has a reduction: it encodes while few contributions wait, and
 * settles and averages what has closed, between packets. The caller holds the thread where it wants to touch these itself.
 * A packet's values are read when it leaves, and only if its request was in flight as it was when the core was last looked
 * at. So they may change once the core has let go of the request and has heard of something that was received after that.
 */
#pragma once
#include "core.h"
#include "pacer.h"
#include "reduction.h"

/* What went over the socket: UDP payload. */
struct traffic {
    int64_t bytes_sent, bytes_received, packets_sent, packets_received;
    int64_t send_failures;
    int64_t short_packets, other_version, wrong_length, damaged; /* that came, and are no packets */
};

struct engine;
struct port;

/* On a socket that is connected to the switch; NULL without memory, threads or descriptors. Of one core or two, of different
 * jobs and with results of the same length; each packet is its job's. Up to `batches` closed blocks of each are told
 * together, 0: none of them are. Not paced where `mbps` is 0. `joins`: as datagrams_send()'s. The cores stay their
 * opener's, who closes them after the engine. */
struct engine *engine_open(struct core *const *cores, const int64_t *batches, int64_t count, int socket, double mbps,
                           int64_t burst_bytes, double late_s, int32_t joins);
/* Stop, and join the thread; what waits is lost. The socket stays open. */
void engine_close(struct engine *engine);
/* Of a core: in it one calls it, and hears of it. */
struct port *engine_port(struct engine *engine, int64_t at);
/* Why the thread has ended; empty: it has not. */
const char *engine_error(const struct engine *engine);
/* Whether that is what a core said. */
int engine_error_is_cores(const struct engine *engine);
const struct traffic *engine_traffic(const struct engine *engine);

/* Readable when there are instructions, or an error; when the others have left this worker behind; when fewer packets wait
 * than was asked for; and when blocks of a reduction have closed for which somebody waits. */
int port_news_fd(const struct port *port);
/* As core_take(), SEND not among it: since the last time. -1: the thread has ended, engine_error() says why. */
int64_t port_take(struct port *port, struct instruction *into, struct result *results, int64_t room);
/* Packets that wait in this host for their turn to leave. */
int64_t port_queued(const struct port *port);
/* Say so once, when fewer than so many contributions wait, for the pacer or the window. */
void port_want(struct port *port, int64_t fewer);
/* From now on what a reduction can do is done by the thread, until it is another one; NULL: nothing is. It stays the
 * caller's. What is wrong with a result is left to the caller. */
void port_reduce(struct port *port, struct reduction *reduction);
/* Somebody waits for the means of blocks `first` to `end` of a reduction: that all are there is told at once, and what else
 * closes meanwhile soon. The same number twice: nobody does, and nothing is told before the end. */
void port_await(struct port *port, int64_t first, int64_t end);
/* More of its gradient is there. */
void port_wake(struct port *port);
/* The thread waits until the same number of port_release(). */
void port_hold(struct port *port);
void port_release(struct port *port);

/* -- the core's, while the thread does not call it */

int port_begin(struct port *port, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
               int32_t lanes);
int port_jump(struct port *port, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
              int32_t lanes);
int port_contribute(struct port *port, const struct packed *ready, int64_t count, double now, int32_t part,
                    int32_t counts, int32_t uses);
int port_result_in(struct port *port, int64_t iteration, int64_t block, const struct result *result, double now);
int port_ask_slot(struct port *port);
void port_withdraw(struct port *port, int64_t *requests, int64_t count);
void port_enter(struct port *port, uint32_t generation);
void port_in_pieces(struct port *port, const int64_t *level);
int port_owned(struct port *port, const int64_t *owner, int64_t span, double now);
void port_received(struct port *port, const int64_t *recipient);
void port_others_reached(struct port *port, int64_t iteration);
void port_regroup(struct port *port, uint32_t generation);
int port_resume(struct port *port, double now);
double port_take_link_wait(struct port *port, double now);
double port_deadline_s(struct port *port);
int64_t port_next_results(struct port *port, int64_t iteration);
int64_t port_results(struct port *port, int64_t iteration, uint32_t *blocks, struct result *results);
