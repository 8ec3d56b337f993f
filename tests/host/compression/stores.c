/* Records memory before each store of code compiled with -fsanitize=thread, in place of that sanitizer's library. It
 * keeps every state that a kill could leave; equal states in a row count once. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES = 16 };

static struct {
    const uint8_t *place;
    int64_t size;
} watched[PLACES];
static int64_t places, state_size, states, room;
static uint8_t *kept;

/* Copies the watched memory behind the kept states, without keeping it yet. */
static const uint8_t *keep(void) {
    if (states + 2 > room) {
        room = 2 * room + 2;
        kept = realloc(kept, (size_t)(room * state_size));
    }
    uint8_t *state = kept + states * state_size, *to = state;
    for (int64_t i = 0; i < places; to += watched[i++].size)
        memcpy(to, watched[i].place, (size_t)watched[i].size);
    return state;
}

void stores_look(void) {
    if (!places)
        return;
    const uint8_t *now = keep();
    states += !states || memcmp(now, now - state_size, (size_t)state_size);
}

void stores_watch(const uint8_t *const *at, const int64_t *sizes, int64_t count) {
    states = room = state_size = 0;
    for (places = 0; places < count; places++) {
        watched[places].place = at[places], watched[places].size = sizes[places];
        state_size += sizes[places];
    }
}

/* Stops watching and returns the states, one after another. */
const uint8_t *stores_end(int64_t *count) {
    stores_look();
    *count = states, places = 0;
    return kept;
}

#define STORE(name) \
    void name(void *place) { \
        (void)place; \
        stores_look(); \
    }
#define OTHER(name) \
    void name(void *place) { \
        (void)place; \
    }
#define SIZE(size) \
    STORE(__tsan_write##size) \
    STORE(__tsan_unaligned_write##size) \
    OTHER(__tsan_read##size) \
    OTHER(__tsan_unaligned_read##size)

SIZE(1)
SIZE(2)
SIZE(4)
SIZE(8)
SIZE(16)
STORE(__tsan_write_range)
OTHER(__tsan_read_range)
OTHER(__tsan_func_entry)

void __tsan_func_exit(void) {
}

void __tsan_init(void) {
}

void __tsan_atomic64_store(volatile int64_t *place, int64_t value, int order) {
    (void)order;
    stores_look();
    *place = value;
}

void __tsan_atomic_signal_fence(int order) {
    (void)order;
}

/* Exchanges the flag that one thread sets; it is not in the ledger's memory. */
int64_t __tsan_atomic64_exchange(volatile int64_t *place, int64_t value, int order) {
    int64_t before = *place;
    (void)order;
    *place = value;
    return before;
}
