/* How long to wait for an answer, learnt from how long answers were waited for. Times in seconds. */
#pragma once
#include <stdint.h>

#define RTO_MIN_S 0.003
#define RTO_MAX_S 1.0

/* The retransmission timeout of RFC 6298: from smoothed waits and their deviation. */
struct timeout {
    double initial_s;
    double spare; /* share of the usual wait that is added at least, however regular waits are */
    double smoothed_s, deviation_s; /* smoothed_s < 0: no sample */
};

struct timeout timeout_of(double initial_s, double spare);
/* An answer was waited for so long. */
void timeout_sample(struct timeout *timeout, double wait_s);
/* By when nearly all answers are here; most; hardly any. */
double timeout_rto_s(const struct timeout *timeout);
double timeout_usual_s(const struct timeout *timeout);
double timeout_soon_s(const struct timeout *timeout);

/* The reordering window of RFC 8985: it grows when a request was sent again in vain (the answer came sooner than any
 * can), and shrinks when that was needed. */
struct reordering {
    double window_s, soonest_s;
};

struct reordering reordering_at_first(void);
/* By when an answer is here for which nobody else is waited for. */
double reordering_trip_s(const struct reordering *reordering);
/* An answer came so long after its request was sent the last time, which was not the first if `again`. */
void reordering_answer(struct reordering *reordering, double since_sent_s, int again);
