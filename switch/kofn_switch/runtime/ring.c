// Queues from the packet thread to Python.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core.h"

int ring_open(struct ring *ring) {
    pthread_condattr_t monotonic;
    ring->head = ring->tail = 0;
    ring->bytes = malloc(RING_BYTES);
    pthread_mutex_init(&ring->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ring->arrived, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return ring->bytes ? 0 : -ENOMEM;
}

void ring_close(struct ring *ring) {
    pthread_cond_destroy(&ring->arrived);
    pthread_mutex_destroy(&ring->lock);
    free(ring->bytes);
}

static void copy_in(struct ring *ring, const void *from, uint64_t bytes) {
    uint64_t at = ring->tail % RING_BYTES;
    uint64_t first = bytes < RING_BYTES - at ? bytes : RING_BYTES - at;
    memcpy(ring->bytes + at, from, first);
    memcpy(ring->bytes, (const uint8_t *)from + first, bytes - first);
    ring->tail += bytes;
}

static void copy_out(struct ring *ring, uint64_t from, uint8_t *to, uint64_t bytes) {
    uint64_t at = from % RING_BYTES;
    uint64_t first = bytes < RING_BYTES - at ? bytes : RING_BYTES - at;
    memcpy(to, ring->bytes + at, first);
    memcpy(to + first, ring->bytes, bytes - first);
}

// Put one record of several parts. Return 0, or -1 when there is no room.
int ring_put(struct ring *ring, const struct iovec *parts, int count) {
    uint32_t bytes = 0;
    int result = -1;
    for (int i = 0; i < count; i++) bytes += (uint32_t)parts[i].iov_len;
    pthread_mutex_lock(&ring->lock);
    if (RING_BYTES - (ring->tail - ring->head) >= bytes + sizeof bytes) {
        copy_in(ring, &bytes, sizeof bytes);
        for (int i = 0; i < count; i++) copy_in(ring, parts[i].iov_base, parts[i].iov_len);
        result = 0;
        pthread_cond_signal(&ring->arrived);
    }
    pthread_mutex_unlock(&ring->lock);
    return result;
}

static void wait_for_record(struct ring *ring, int timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (ring->head == ring->tail && pthread_cond_timedwait(&ring->arrived, &ring->lock, &until) == 0) continue;
}

// Take as many whole records as fit into `space`, each after its length; wait for the first. Return the bytes written.
int64_t ring_take(struct ring *ring, uint8_t *to, uint64_t space, int timeout_ms) {
    uint64_t written = 0;
    pthread_mutex_lock(&ring->lock);
    if (ring->head == ring->tail && timeout_ms > 0) wait_for_record(ring, timeout_ms);
    while (ring->head != ring->tail) {
        uint32_t bytes;
        copy_out(ring, ring->head, (uint8_t *)&bytes, sizeof bytes);
        if (written + sizeof bytes + bytes > space) break;
        copy_out(ring, ring->head, to + written, sizeof bytes + bytes);
        ring->head += sizeof bytes + bytes;
        written += sizeof bytes + bytes;
    }
    pthread_mutex_unlock(&ring->lock);
    return (int64_t)written;
}
