/* How long to wait for an answer, learnt from earlier waits. Times are in seconds. */
#pragma once
#include <stdint.h>

#define RTO_MIN_S 0.003
#define RTO_MAX_S 1.0

/* The retransmission timeout of RFC 6298: from smoothed waits and their deviation. */
struct timeout {
    double initial_s;
    double spare; /* minimum margin, as a share of the smoothed wait */
    double smoothed_s, deviation_s; /* smoothed_s < 0: no sample */
};

struct timeout timeout_of(double initial_s, double spare);
/* Add a sample: an answer was awaited for `wait_s`. */
void timeout_sample(struct timeout *timeout, double wait_s);
/* The time after which nearly all answers have come. */
double timeout_rto_s(const struct timeout *timeout);
/* The time after which most answers have come. */
double timeout_usual_s(const struct timeout *timeout);
/* The time before which hardly any answer has come. */
double timeout_soon_s(const struct timeout *timeout);

/* The reordering window of RFC 8985. It grows after an unnecessary retransmission (another packet caused the answer), and shrinks
 * after a necessary retransmission. */
struct reordering {
    double window_s, soonest_s;
};

struct reordering reordering_at_first(void);
/* The time until an answer that depends on no other worker. */
double reordering_trip_s(const struct reordering *reordering);
/* The answer to a request came `since_sent_s` after its only attempt. */
void reordering_answer(struct reordering *reordering, double since_sent_s);
/* The answer to a request came `since_sent_s` after its retransmission. `caused`: a retransmitted packet caused the answer. If the
 * answer came sooner than every answer to a request with one attempt, an earlier attempt caused it. The window grows up to `rto_s`,
 * the timeout of an answer, or 4 ms. */
void reordering_answer_again(struct reordering *reordering, double since_sent_s, int caused, double rto_s);
