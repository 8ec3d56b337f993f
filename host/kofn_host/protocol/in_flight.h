/* Requests in flight, and when each of them is retransmitted.
 *
 * Three signs indicate a loss. (1) A later request was answered: retransmit after a short reordering window, or after a longer
 * time if the later request has a lower level, which others may send earlier. (2) No answer comes at all for longer than usual:
 * probe with the oldest requests, at first with one request. (3) Before an iteration's first answer only a long silence is a
 * sign, because k workers must contribute before there can be an answer. The answer to a retransmitted request says whether it
 * answers the first attempt. Such an answer is no sign that requests were lost which were sent after the first attempt.
 *
 * A merged contribution does not count among the k and is sent once: no block waits for it. If it is lost, its gradients stay
 * pending for the next contribution. The contribution is in flight only so that a refusal finds it. A request is a number;
 * times are in seconds of any clock.
 */
#pragma once
#include "header.h"
#include "timeout.h"

struct flight {
    struct header header;
    const uint8_t *values;
    int64_t size, request;
    int64_t launch;             /* a new number for each newly encoded request */
    int64_t order, first_order; /* order of sending among all requests, of the last and of the first attempt; an expected
                                 * request keeps its first order, because its owner sends in one order */
    double first_sent_s, sent_s; /* in the future while the request waits in the send queue */
    double deadline_s;          /* finite once a later request has been answered */
    int32_t attempts, asked_peers;
    int32_t to_again; /* if answered: a retransmitted packet, of any worker, caused the answer */
    int32_t expected; /* another worker sends the block; this PULL is sent only when the block is overdue */
    struct flight *earlier, *later; /* by `order` */
};

/* Flights in the order of sending. */
struct flights {
    struct flight *first, *last;
};

struct in_flight {
    struct flight **by_request; /* NULL: not in flight */
    int64_t count; /* number of flights in `awaited` */
    struct flights awaited, merged;
    struct flight *unused;
    double silent_from_s; /* start of the current silence */
    double soonest_s;  /* a lower bound of all flights' deadlines */
    struct timeout waiting; /* until an iteration's first answer: k workers must have contributed */
    struct timeout moving;  /* from one answer to the next: the network alone */
    struct timeout answer;  /* from a request to its answer */
    struct reordering reordering;
    int64_t order, launches;
    int32_t probes; /* since the last answer */
    int32_t disordered; /* a slot has refused a request of this iteration: workers have stopped sending in one order */
    int32_t in_pieces; /* gradients of this iteration come in pieces: during a silence workers may compute more pieces */
    const int64_t *level; /* by gradient block: workers send blocks of one level in the same order; NULL: all blocks */
    int64_t levels; /* blocks that have a level */
    int32_t owned; /* levels are owners, whose paces are independent */
    double heard_at_s;     /* when the last answer came, or a request was sent while none was in flight */
    double moving_since_s; /* when the first block of this iteration closed; NAN: no block has */
    double all_left_at_s;  /* when the last of the queued flights leaves */
};

/* Returns 0 without memory. */
int in_flight_open(struct in_flight *all, int64_t requests, double rto_s);
void in_flight_close(struct in_flight *all);

/* When the next retransmission is due; INFINITY if no request is awaited. */
double in_flight_deadline_s(const struct in_flight *all);
/* Begin an iteration whose first block closed at `moving_since_s`; NAN: no block has closed yet. */
void in_flight_begin(struct in_flight *all, double moving_since_s);
/* The new flight, or NULL without memory. */
struct flight *in_flight_launch(struct in_flight *all, int64_t request, const struct header *header,
                                const uint8_t *values, int64_t size, double now);
/* As in_flight_launch(), for a request that is not sent: another worker's packet will cause its answer. */
struct flight *in_flight_expect(struct in_flight *all, int64_t request, const struct header *header,
                                const uint8_t *values, int64_t size, double now);
/* Note that a request that was just launched or retransmitted leaves at `at_s`, after all earlier requests. */
void in_flight_leaves(struct in_flight *all, struct flight *flight, double at_s);
/* End the silence: the switch has answered, or no request was in flight before. */
void in_flight_heard(struct in_flight *all, double now);
/* Learn from a batch of answers and remove their requests, which must be in flight and awaited. */
void in_flight_answered(struct in_flight *all, const int64_t *requests, int64_t count, double now);
/* Write the requests to retransmit into `requests`: overtaken requests whose deadline has passed; in a silence also the oldest
 * requests, twice as many with each probe, or only one request if gradients come in pieces. Returns their number. */
int64_t in_flight_due(struct in_flight *all, double now, int64_t *requests);
/* Note a retransmission. */
void in_flight_again(struct in_flight *all, struct flight *flight, double now);
void in_flight_remove(struct in_flight *all, struct flight *flight);
void in_flight_clear(struct in_flight *all);
/* Whether the iteration waits for this request's answer; false for merged contributions. */
int in_flight_is_awaited(const struct flight *flight);
