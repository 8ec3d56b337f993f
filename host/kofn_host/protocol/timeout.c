#include "timeout.h"

#include <math.h>

#define SOON 0.25 /* share of the smoothed wait; an answer that is sooner belongs to an earlier attempt */
#define WINDOW_MIN_S 0.0005
#define WINDOW_MAX_S 0.004 /* or the timeout of an answer, if that is longer */

static double between(double least, double value, double most) {
    return fmin(most, fmax(least, value));
}

struct timeout timeout_of(double initial_s, double spare) {
    return (struct timeout){.initial_s = initial_s, .spare = spare, .smoothed_s = -1};
}

void timeout_sample(struct timeout *timeout, double wait_s) {
    if (timeout->smoothed_s < 0) {
        timeout->smoothed_s = wait_s;
        timeout->deviation_s = wait_s / 2;
    } else {
        timeout->deviation_s += (fabs(timeout->smoothed_s - wait_s) - timeout->deviation_s) / 4;
        timeout->smoothed_s += (wait_s - timeout->smoothed_s) / 8;
    }
}

/* The smoothed wait plus this many deviations. */
static double after(const struct timeout *timeout, int deviations) {
    if (timeout->smoothed_s < 0)
        return timeout->initial_s;
    const double spare_s = fmax(deviations * timeout->deviation_s, timeout->spare * timeout->smoothed_s);
    return between(RTO_MIN_S, timeout->smoothed_s + spare_s, RTO_MAX_S);
}

double timeout_rto_s(const struct timeout *timeout) {
    return after(timeout, 4);
}

double timeout_usual_s(const struct timeout *timeout) {
    return after(timeout, 2);
}

double timeout_soon_s(const struct timeout *timeout) {
    return timeout->smoothed_s < 0 ? 0 : SOON * timeout->smoothed_s;
}

struct reordering reordering_at_first(void) {
    return (struct reordering){.window_s = WINDOW_MIN_S, .soonest_s = INFINITY};
}

double reordering_trip_s(const struct reordering *reordering) {
    return between(RTO_MIN_S, 2 * reordering->soonest_s, RTO_MAX_S);
}

void reordering_answer(struct reordering *reordering, double since_sent_s) {
    reordering->soonest_s = fmin(reordering->soonest_s, since_sent_s);
}

void reordering_answer_again(struct reordering *reordering, double since_sent_s, int caused, double rto_s) {
    if (caused && since_sent_s >= reordering->soonest_s)
        reordering->window_s = fmax(WINDOW_MIN_S, 0.7 * reordering->window_s);
    else
        reordering->window_s = fmin(fmax(WINDOW_MAX_S, rto_s), 2 * reordering->window_s);
}
