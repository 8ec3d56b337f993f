/* Virtual time: a heap of coming events; the clock jumps from each to the next.
 *
 * An event is a C function, or a call that Python has numbered and carries out when clock_next() returns its number.
 * A lack of memory ends the process.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* An event's function. It acts on `whom` with `what`, which it must free, and returns the number of a call that Python has
 * to carry out at once; 0: none. */
typedef int64_t happening(void *whom, void *what);

struct event {
    double at_s;
    int64_t order; /* orders simultaneous events: the first scheduled is first */
    happening *happen; /* NULL: call number `order` */
    void *whom, *what;
};

struct clock {
    double now_s;
    int64_t orders, count, capacity;
    struct event *heap;
};

struct clock *clock_open(void);
void clock_close(struct clock *clock);

/* Schedule an event for this time, or for now if the time has passed. */
void clock_at(struct clock *clock, double at_s, happening *happen, void *whom, void *what);
/* Schedule a call of Python's and return its number. */
int64_t clock_call(struct clock *clock, double at_s);
/* Run events until Python has to carry out a call. Return the call's number; 0: no event is left. */
int64_t clock_next(struct clock *clock);

/* Return zeroed memory. */
void *wanted(size_t size);
