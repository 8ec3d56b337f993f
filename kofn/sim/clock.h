/* Virtual time: a heap of what is to happen, one after another; the clock jumps from each to the next.
 *
 * What happens is a function of C, or a call that Python has numbered: whoever asked for the next one has to carry it out.
 * Memory that is not there ends the process.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Something happens to `whom`, by `what` (now the function's, to free). The number of a call that Python has to carry out at
 * once; 0: none. */
typedef int64_t happening(void *whom, void *what);

struct event {
    double at_s;
    int64_t order; /* of what happens at the same moment: as it was asked for */
    happening *happen; /* NULL: call number `order` */
    void *whom, *what;
};

struct clock {
    double now_s; /* the first field: clock.py looks at it */
    int64_t orders, count, capacity;
    struct event *heap;
};

struct clock *clock_open(void);
void clock_close(struct clock *clock);

/* Have something happen at this moment, or now if that has passed. */
void clock_at(struct clock *clock, double at_s, happening *happen, void *whom, void *what);
/* The same for a call of Python's: its number. */
int64_t clock_call(struct clock *clock, double at_s);
/* Let things happen until Python has to carry out a call: its number; 0: nothing is left. */
int64_t clock_next(struct clock *clock);

/* Memory, all 0. */
void *wanted(size_t size);
