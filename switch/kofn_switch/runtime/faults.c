// See faults.h. Everything here except core_set_faults happens under the core's lock.
#include "faults.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bits.h"
#include "core.h"

// Random numbers: splitmix64, a stream for each lane, so that a lane's decisions depend on its frames alone.

static uint64_t next_random(uint64_t *state) {
    uint64_t mixed = *state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

static double uniform(struct lane *lane) { return (double)(next_random(&lane->random) >> 11) * 0x1p-53; }

static int happens(struct lane *lane, double probability) { return probability > 0 && uniform(lane) < probability; }

// Waiting frames: a binary heap.

static int before(const struct frame *a, const struct frame *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void put_at(struct faults *faults, uint32_t place, struct frame *frame) {
    faults->waiting[place] = frame;
    frame->place = place;
}

static void sift_up(struct faults *faults, uint32_t place, struct frame *frame) {
    for (; place > 0 && before(frame, faults->waiting[(place - 1) / 2]); place = (place - 1) / 2)
        put_at(faults, place, faults->waiting[(place - 1) / 2]);
    put_at(faults, place, frame);
}

static void sift_down(struct faults *faults, uint32_t place, struct frame *frame) {
    for (uint32_t child; (child = 2 * place + 1) < faults->waiting_count; place = child) {
        if (child + 1 < faults->waiting_count && before(faults->waiting[child + 1], faults->waiting[child])) child++;
        if (!before(faults->waiting[child], frame)) break;
        put_at(faults, place, faults->waiting[child]);
    }
    put_at(faults, place, frame);
}

// Remove a frame from the waiting frames. If its lane held it back, the lane may now hold back another frame.
static void take_out(struct faults *faults, struct frame *frame) {
    struct lane *lane = &faults->lanes[frame->direction][frame->port];
    struct frame *last = faults->waiting[--faults->waiting_count];
    if (lane->held == frame) lane->held = NULL;
    if (last == frame) return;
    if (before(last, frame))
        sift_up(faults, frame->place, last);
    else
        sift_down(faults, frame->place, last);
}

static void wait_until(struct core *core, struct frame *frame, uint64_t due_ns) {
    struct faults *faults = core->faults;
    if (faults->waiting_count == DELAYED_MAX) {
        struct frame *oldest = faults->waiting[0];
        take_out(faults, oldest);
        free(oldest);
        core->drops[DROP_DELAY_QUEUE_FULL]++;
    }
    frame->due_ns = due_ns;
    frame->order = faults->order++;
    sift_up(faults, faults->waiting_count++, frame);
    if (frame->place == 0) core_wake(core);
}

static void deliver(struct core *core, struct frame *frame) {
    if (frame->direction == FAULT_OUT) {
        core_send_frame(core, frame->port, frame->bytes, frame->length);
        free(frame);
        return;
    }
    core->process(core, frame->port, frame->bytes, frame->length);
    frame->next = core->faults->spent;
    core->faults->spent = frame;
}

// The rules applied to one frame.

static struct frame *new_frame(struct core *core, uint32_t length) {
    struct frame *frame = malloc(sizeof *frame + length);
    if (frame)
        *frame = (struct frame){.length = length};
    else
        core->drops[DROP_DELAY_QUEUE_FULL]++;
    return frame;
}

static struct frame *twin_of(struct core *core, const struct frame *frame) {
    struct frame *twin = new_frame(core, frame->length);
    if (twin) memcpy(twin, frame, sizeof *frame + frame->length);
    return twin;
}

static void arrive(struct core *core, struct frame *frame, uint64_t due_ns, uint64_t now_ns) {
    if (due_ns <= now_ns)
        deliver(core, frame);
    else
        wait_until(core, frame, due_ns);
}

// Release the frame that was held back, after the frame that passed it.
static void follow(struct core *core, struct frame *held, uint64_t due_ns, uint64_t now_ns) {
    take_out(core->faults, held);
    arrive(core, held, held->own_due_ns > due_ns ? held->own_due_ns : due_ns, now_ns);
}

static void set_out(struct core *core, struct lane *lane, struct frame *frame, uint64_t now_ns) {
    uint64_t due_ns = now_ns + frame->delay_ns;
    if (frame->delay_ns) lane->counts.delayed++;
    if (frame->hold && !lane->held) {
        lane->counts.reordered++;
        lane->held = frame;
        frame->own_due_ns = due_ns;
        wait_until(core, frame, due_ns + HELD_NS);
        return;
    }
    arrive(core, frame, due_ns, now_ns);
    if (lane->held) follow(core, lane->held, due_ns, now_ns);
}

static void change(struct lane *lane, const struct fault_rule *rule, struct frame *frame) {
    if (happens(lane, rule->corrupt) && frame->length) {
        uint64_t bit = next_random(&lane->random) % (8 * (uint64_t)frame->length);
        frame->bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        lane->counts.corrupted++;
    }
    frame->delay_ns += rule->delay_ns;
    if (rule->jitter_ns) frame->delay_ns += (uint64_t)(uniform(lane) * (double)rule->jitter_ns);
    if (happens(lane, rule->reorder)) frame->hold = 1;
}

static int scripted(const struct faults *faults, const struct fault_rule *rule, uint64_t number) {
    const uint32_t *numbers = faults->numbers + rule->first_number;
    for (uint32_t i = 0; i < rule->numbers; i++)
        if (numbers[i] == number) return 1;
    return rule->numbers == 0;
}

static int in_force(const struct faults *faults, const struct fault_rule *rule, const struct lane *lane,
                    const struct frame *frame, uint64_t now_ns) {
    uint64_t elapsed_ns = now_ns - faults->started_ns[frame->port];
    return rule->port == frame->port && rule->directions >> frame->direction & 1 && elapsed_ns >= rule->from_ns &&
           elapsed_ns < rule->until_ns && scripted(faults, rule, lane->frames);
}

static void apply(struct core *core, struct lane *lane, struct frame *frame, uint32_t first, uint64_t now_ns) {
    for (uint32_t i = first; i < core->faults->rule_count; i++) {
        const struct fault_rule *rule = &core->faults->rules[i];
        if (!in_force(core->faults, rule, lane, frame, now_ns)) continue;
        if (happens(lane, rule->drop)) {
            lane->counts.dropped++;
            free(frame);
            return;
        }
        struct frame *twin = happens(lane, rule->duplicate) ? twin_of(core, frame) : NULL;
        change(lane, rule, frame);
        if (!twin) continue;
        lane->counts.duplicated++;
        apply(core, lane, frame, i + 1, now_ns);
        change(lane, rule, frame = twin);
    }
    set_out(core, lane, frame, now_ns);
}

static int wanted(const struct faults *faults, const struct frame *frame) {
    return !faults->udp_port || is_udp_to(frame->bytes, frame->length, faults->udp_port);
}

// Process a frame of a lane that has rules.
void faults_pass(struct core *core, enum fault_direction direction, uint32_t port, const struct iovec *parts,
                 size_t count) {
    struct lane *lane = &core->faults->lanes[direction][port];
    uint32_t length = 0;
    for (size_t i = 0; i < count; i++) length += (uint32_t)parts[i].iov_len;
    struct frame *frame = new_frame(core, length);
    if (!frame) return;
    frame->port = port;
    frame->direction = (uint8_t)direction;
    uint8_t *to = frame->bytes;
    for (size_t i = 0; i < count; to += parts[i++].iov_len) memcpy(to, parts[i].iov_base, parts[i].iov_len);
    if (!wanted(core->faults, frame)) {
        deliver(core, frame);
        return;
    }
    uint64_t now_ns = core_clock_ns(), *started_ns = &core->faults->started_ns[port];
    if (!*started_ns) *started_ns = now_ns;
    lane->frames++;
    apply(core, lane, frame, 0, now_ns);
}

// Deliver the frames whose time has come; the caller sends the outputs.
void faults_release(struct core *core) {
    struct faults *faults = core->faults;
    uint64_t now_ns = core_clock_ns();
    while (faults->waiting_count && faults->waiting[0]->due_ns <= now_ns) {
        struct frame *frame = faults->waiting[0];
        take_out(faults, frame);
        deliver(core, frame);
    }
}

// Return the time until the next waiting frame is due; NULL when no frame waits.
const struct timespec *faults_timeout(struct core *core, struct timespec *timeout) {
    core_lock(core);
    uint64_t now_ns = core_clock_ns();
    int waits = core->faults->waiting_count > 0;
    uint64_t due_ns = waits ? core->faults->waiting[0]->due_ns : now_ns;
    core_unlock(core);
    uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : 0;
    *timeout = (struct timespec){(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)};
    return waits ? timeout : NULL;
}

// Free delivered frames; the caller has sent everything that was queued.
void faults_recycle(struct faults *faults) {
    while (faults->spent) {
        struct frame *frame = faults->spent;
        faults->spent = frame->next;
        free(frame);
    }
}

// Drop all waiting frames.
void faults_clear(struct faults *faults) {
    while (faults->waiting_count) {
        struct frame *frame = faults->waiting[0];
        take_out(faults, frame);
        free(frame);
    }
    faults_recycle(faults);
}

// Reset: no frame waits, counts are 0, random numbers and time begin again.
void faults_reset(struct core *core) {
    struct faults *faults = core->faults;
    if (!faults) return;
    faults_clear(faults);
    memset(faults->lanes, 0, sizeof faults->lanes);
    memset(faults->started_ns, 0, sizeof faults->started_ns);
    for (uint32_t i = 0; i < FAULT_DIRECTIONS * FAULT_PORTS; i++) {
        struct lane *lane = &faults->lanes[i / FAULT_PORTS][i % FAULT_PORTS];
        lane->random = i;
        lane->random = next_random(&lane->random) ^ faults->seed;
    }
    for (uint32_t i = 0; i < faults->rule_count; i++)
        for (int direction = 0; direction < FAULT_DIRECTIONS; direction++)
            faults->lanes[direction][faults->rules[i].port].active |= faults->rules[i].directions >> direction & 1;
}

void faults_free(struct core *core) {
    struct faults *faults = core->faults;
    if (!faults) return;
    core->faults = NULL;
    faults_clear(faults);
    free(faults->rules);
    free(faults->numbers);
    free(faults);
}

static void *copy_of(const void *from, size_t bytes) {
    void *copy = malloc(bytes ? bytes : 1);
    if (copy) memcpy(copy, from, bytes);
    return copy;
}

int core_set_faults(struct core *core, const struct fault_rule *rules, uint32_t rule_count, const uint32_t *numbers,
                    uint32_t number_count, uint64_t seed, uint32_t udp_port) {
    struct faults *faults = calloc(1, sizeof *faults);
    if (!faults) return -ENOMEM;
    faults_free(core);
    core->faults = faults;
    faults->rules = copy_of(rules, rule_count * sizeof *rules);
    faults->numbers = copy_of(numbers, number_count * sizeof *numbers);
    faults->rule_count = rule_count;
    faults->seed = seed;
    faults->udp_port = udp_port;
    if (faults->rules && faults->numbers) {
        faults_reset(core);
        return 0;
    }
    faults_free(core);
    return -ENOMEM;
}

void core_fault_counts(struct core *core, uint32_t port, uint32_t direction, struct fault_counts *counts) {
    core_lock(core);
    const struct faults *faults = core->faults;
    *counts = faults ? faults->lanes[direction][port % FAULT_PORTS].counts : (struct fault_counts){0};
    core_unlock(core);
}
