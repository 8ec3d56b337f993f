/* The engine: one thread that moves a worker's packets.
 *
 *     socket --> cores --> pacer --> socket         (thread, without Python)
 *                  |
 *                  '--> instructions, news_fd readable --> the caller encodes and decodes
 *
 * The thread and the callers share a core, one at a time: callers use the functions of its port below, which lock out the
 * thread. The thread follows the core's SEND instructions; the caller waits for `news_fd` and takes the other instructions.
 * While a port has a reduction, the thread does the caller's work too, between packets: it encodes while few contributions
 * wait, and settles and averages closed blocks. A caller that touches the reduction must hold the thread.
 * A packet's values are read when the packet leaves, and only if its launch was still in flight when the core was last locked.
 * So the values may change after the core has dropped the request and has then handled a later datagram.
 */
#pragma once
#include "core.h"
#include "pacer.h"
#include "reduction.h"

/* Counters of the socket: UDP payload. */
struct traffic {
    int64_t bytes_sent, bytes_received, packets_sent, packets_received;
    int64_t send_failures;
    int64_t short_packets, other_version, wrong_length, damaged; /* ignored datagrams */
};

struct engine;
struct port;

/* Open an engine on a socket that is connected to the switch; NULL without memory, threads or descriptors. The engine drives
 * one core or two, of different jobs and with longest results of the same length. `batches`, by core: the most closed blocks
 * that are reported together; 0: closed blocks are not reported. `mbps` 0: unpaced. `joins`: as in datagrams_send(). The caller
 * keeps the cores, and closes them after the engine. */
struct engine *engine_open(struct core *const *cores, const int64_t *batches, int64_t count, int socket, double mbps,
                           int64_t burst_bytes, double late_s, int32_t joins);
/* Stop the thread; waiting packets are lost. The socket stays open. */
void engine_close(struct engine *engine);
/* The port of the core number `at`, for calls to the core and news of it. */
struct port *engine_port(struct engine *engine, int64_t at);
/* The error that has ended the thread; empty: none. */
const char *engine_error(const struct engine *engine);
/* Whether engine_error() is a core's error. */
int engine_error_is_cores(const struct engine *engine);
const struct traffic *engine_traffic(const struct engine *engine);

/* Readable when there are instructions or an error; when the other workers are ahead; when fewer packets wait than port_want()
 * asked for; and when awaited means of a reduction are complete. */
int port_news_fd(const struct port *port);
/* Take the new instructions except SEND, as core_take() does; -1: the thread has ended with engine_error(). */
int64_t port_take(struct port *port, struct instruction *into, struct result *results, int64_t room);
/* Packets that wait in the send queue. */
int64_t port_queued(const struct port *port);
/* Change the rate at which the packets of all ports leave: as in pacer_rate(). */
void port_rate(struct port *port, double mbps, int64_t burst_bytes, double late_s, double now);
/* Signal news_fd once, when fewer than `fewer` contributions wait for the pacer or the window. */
void port_want(struct port *port, int64_t fewer);
/* Let the thread run this reduction from now on; NULL: none. The caller keeps the reduction, and handles erroneous results. */
void port_reduce(struct port *port, struct reduction *reduction);
/* Await the means of blocks `first` to `end` of a reduction: their completion is reported at once, other closed blocks in batches.
 * If `first` equals `end`, no mean is awaited; then nothing is reported before the iteration's end. */
void port_await(struct port *port, int64_t first, int64_t end);
/* Note that the reduction's gradient has another piece. */
void port_wake(struct port *port);
/* Lock out the thread until port_release() was called as often as port_hold(). */
void port_hold(struct port *port);
void port_release(struct port *port);

/* -- the core's functions, with the thread locked out */

int port_begin(struct port *port, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
               int32_t lanes);
int port_jump(struct port *port, int64_t iteration, double now, const int32_t *blocks, int64_t count, int64_t first,
              int32_t lanes);
int port_contribute(struct port *port, const struct packed *ready, int64_t count, double now, int32_t part,
                    int32_t counts, int32_t uses);
int port_results_in(struct port *port, int64_t iteration, const int64_t *blocks, const struct result *results, int64_t count,
                    double now);
int port_ask_slot(struct port *port);
void port_withdraw(struct port *port, int64_t *requests, int64_t count);
void port_enter(struct port *port, uint32_t generation);
void port_in_pieces(struct port *port, const int64_t *level);
int port_owned(struct port *port, const int64_t *owner, int64_t span, double now);
void port_received(struct port *port, const int64_t *recipient);
int port_follow(struct port *port, int32_t follows, double now);
void port_others_reached(struct port *port, int64_t iteration);
void port_regroup(struct port *port, uint32_t generation);
int port_resume(struct port *port, double now);
int port_take_link_wait(struct port *port, double now, struct link_wait *taken);
double port_deadline_s(struct port *port);
int64_t port_next_results(struct port *port, int64_t iteration);
int64_t port_results(struct port *port, int64_t iteration, uint32_t *blocks, struct result *results);
