/* Requests that no result has answered yet, and when each of them is sent again.
 *
 * Three things tell that something was lost: a request that was sent later has been answered (soon after, with patience
 * for packets that changed places; where it is of a lower level, which others may send earlier, later); nothing at all has been answered for longer than usual (then the oldest requests are
 * repeated, one at first); and before an iteration's first answer a long wait, because k workers must be there. An answer to a
 * request that was repeated says whether it came to the first attempt: then nothing that was sent later was overtaken.
 * A merged contribution, which counts for none of the k, is sent once: no block waits for it. If it is lost its
 * gradients stay pending and go with the next one. It is in flight only so that its refusal can be followed.
 * A request is a number; times are in seconds, of any clock.
 */
#pragma once
#include "header.h"
#include "timeout.h"

struct flight {
    struct header header;
    const uint8_t *values;
    int64_t size, request;
    int64_t launch;             /* another one whenever the request is made anew */
    int64_t order, first_order; /* of sending, among all requests: the last time, the first time; where it is expected, both
                                 * are the first, as its owner sends in one order */
    double first_sent_s, sent_s; /* to come, while it waits for its turn to leave */
    double deadline_s;          /* finite once a request that was sent later has been answered */
    int32_t attempts, asked_peers;
    int32_t to_again; /* of what is answered: its answer came to a packet that was sent again, this worker's or another's */
    int32_t expected; /* another worker sends what it waits for; only when that is overdue it is sent */
    struct flight *earlier, *later; /* by `order` */
};

/* By the order of sending. */
struct flights {
    struct flight *first, *last;
};

struct in_flight {
    struct flight **by_request; /* NULL: it is not in flight */
    int64_t count; /* of `awaited` */
    struct flights awaited, merged;
    struct flight *unused;
    double silent_from_s; /* how long nothing at all was answered counts from here */
    double soonest_s;  /* no flight's deadline is before */
    struct timeout waiting; /* until an iteration's first answer: k workers must be there */
    struct timeout moving;  /* from one answer to the next: the network alone */
    struct timeout answer;  /* from a request to its answer */
    struct reordering reordering;
    int64_t order, launches;
    int32_t probes; /* since the last answer */
    int32_t disordered; /* a slot has refused a request of this iteration: workers do not send in one order any more */
    int32_t in_pieces; /* gradients of this iteration come in pieces: in a silence others may compute the next ones */
    const int64_t *level; /* by block of such a gradient: workers send those of one level in the same order; NULL: all */
    int64_t levels; /* blocks that have one */
    int32_t owned; /* a level is an owner, whose pace says nothing of another's */
    double heard_at_s;     /* when the last answer came, or a request was sent when there was none */
    double moving_since_s; /* when the first block of this iteration closed; NAN: none has */
    double all_left_at_s;  /* when the last flight leaves that did not leave at once */
};

/* Whether there is memory. */
int in_flight_open(struct in_flight *all, int64_t requests, double rto_s);
void in_flight_close(struct in_flight *all);

/* When something is due; INFINITY while nothing is in flight. */
double in_flight_deadline_s(const struct in_flight *all);
/* A new iteration, whose blocks close since `moving_since_s`; NAN: none has yet. */
void in_flight_begin(struct in_flight *all, double moving_since_s);
/* The new flight, or NULL without memory. */
struct flight *in_flight_launch(struct in_flight *all, int64_t request, const struct header *header,
                                const uint8_t *values, int64_t size, double now);
/* As in_flight_launch(), but another worker sends what answers it, and this is not sent. */
struct flight *in_flight_expect(struct in_flight *all, int64_t request, const struct header *header,
                                const uint8_t *values, int64_t size, double now);
/* A request that was launched or repeated just now leaves later, after all those before it. */
void in_flight_leaves(struct in_flight *all, struct flight *flight, double at_s);
/* The switch has answered something, or nothing was asked before. */
void in_flight_heard(struct in_flight *all, double now);
/* Learn from answers that have come together, which must be in flight and awaited; they are no more. */
void in_flight_answered(struct in_flight *all, const int64_t *requests, int64_t count, double now);
/* The requests to repeat, at most all awaited ones: those that were overtaken long ago; in silence the oldest, twice as many each time,
 * where gradients come in pieces one. How many. */
int64_t in_flight_due(struct in_flight *all, double now, int64_t *requests);
/* A request is sent once more. */
void in_flight_again(struct in_flight *all, struct flight *flight, double now);
void in_flight_remove(struct in_flight *all, struct flight *flight);
void in_flight_clear(struct in_flight *all);
/* Whether the iteration waits for a request's answer; not for a merged contribution's. */
int in_flight_is_awaited(const struct flight *flight);
