#include "clock.h"

#include <stdlib.h>

void *wanted(size_t size) {
    void *found = calloc(1, size);
    if (!found)
        abort();
    return found;
}

struct clock *clock_open(void) {
    return wanted(sizeof(struct clock));
}

void clock_close(struct clock *clock) {
    for (int64_t at = 0; at < clock->count; at++)
        free(clock->heap[at].what);
    free(clock->heap);
    free(clock);
}

static int before(const struct event *one, const struct event *other) {
    return one->at_s < other->at_s || (one->at_s == other->at_s && one->order < other->order);
}

static void grow(struct clock *clock) {
    clock->capacity = clock->capacity ? 2 * clock->capacity : 1024;
    clock->heap = realloc(clock->heap, (size_t)clock->capacity * sizeof *clock->heap);
    if (!clock->heap)
        abort();
}

static void push(struct clock *clock, const struct event *event) {
    if (clock->count == clock->capacity)
        grow(clock);
    int64_t at = clock->count++;
    for (int64_t above; at && before(event, clock->heap + (above = (at - 1) / 2)); at = above)
        clock->heap[at] = clock->heap[above];
    clock->heap[at] = *event;
}

static struct event pop(struct clock *clock) {
    const struct event first = clock->heap[0], last = clock->heap[--clock->count];
    int64_t at = 0;
    for (int64_t below; (below = 2 * at + 1) < clock->count; at = below) {
        if (below + 1 < clock->count && before(clock->heap + below + 1, clock->heap + below))
            below++;
        if (!before(clock->heap + below, &last))
            break;
        clock->heap[at] = clock->heap[below];
    }
    clock->heap[at] = last;
    return first;
}

void clock_at(struct clock *clock, double at_s, happening *happen, void *whom, void *what) {
    const double when_s = at_s > clock->now_s ? at_s : clock->now_s;
    push(clock, &(struct event){when_s, ++clock->orders, happen, whom, what});
}

int64_t clock_call(struct clock *clock, double at_s) {
    clock_at(clock, at_s, NULL, NULL, NULL);
    return clock->orders;
}

int64_t clock_next(struct clock *clock) {
    while (clock->count) {
        const struct event next = pop(clock);
        clock->now_s = next.at_s;
        const int64_t call = next.happen ? next.happen(next.whom, next.what) : next.order;
        if (call)
            return call;
    }
    return 0;
}
