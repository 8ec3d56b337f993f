// Random changes of the frames of a corpus, sent through a switch's program; every emitted byte is read once.
//
// Compiled with the sanitizers against the loaded runtime. A frame's buffer is exactly as long as the frame, so that a
// read beyond it is detected.
#include <stdlib.h>
#include <string.h>

#include "core.h"

static uint64_t chance;

// splitmix64
static uint64_t any(void) {
    uint64_t mixed = chance += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

static uint64_t below(uint64_t limit) { return any() % limit; }

static void fill(uint8_t *to, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t value = any();
        memcpy(to + i, &value, bytes - i < sizeof value ? bytes - i : sizeof value);
    }
}

static uint32_t other_length(uint32_t length) {
    const uint64_t kind = below(32);
    if (kind == 0) return (uint32_t)below(PACKET_MAX + 64);
    if (kind < 8) return (uint32_t)below(length + 1);
    if (kind < 12) return length + (uint32_t)below(600);
    return length;
}

static void change(uint8_t *frame, uint32_t length) {
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff};
    if (length == 0) return;
    for (uint64_t left = below(8); left > 0; left--) {
        uint32_t head = length < 128 ? length : 128, at = (uint32_t)below(below(4) ? head : length);
        switch (below(3)) {
        case 0: frame[at] ^= (uint8_t)(1 << below(8)); break;
        case 1: frame[at] = edges[below(sizeof edges)]; break;
        default: frame[at] = (uint8_t)below(256);
        }
    }
}

// Returns a changed copy of the frame of `length` bytes, longer or shorter; the caller frees it.
static uint8_t *made_from(const uint8_t *seed, uint32_t length, uint32_t *becomes) {
    *becomes = other_length(length);
    uint8_t *frame = malloc(*becomes ? *becomes : 1);
    if (!frame) abort();
    uint32_t kept = below(50) ? (length < *becomes ? length : *becomes) : 0;
    memcpy(frame, seed, kept);
    fill(frame + kept, *becomes - kept);
    change(frame, *becomes);
    return frame;
}

// Sends `count` frames made from `seeds` consecutive ones; returns the number of emitted bytes.
uint64_t fuzz_frames(struct core *core, const uint8_t *corpus, const uint32_t *lengths, const uint32_t *ports,
                     uint32_t seeds, uint64_t count, uint64_t seed) {
    struct ring emitted;
    uint64_t total = 0;
    chance = seed;
    if (ring_open(&emitted) < 0) abort();
    for (uint64_t i = 0; i < count; i++) {
        uint32_t chosen = (uint32_t)below(seeds), length;
        const uint8_t *from = corpus;
        for (uint32_t k = 0; k < chosen; k++) from += lengths[k];
        uint8_t *frame = made_from(from, lengths[chosen], &length);
        core_lock(core);
        core->collect = &emitted;
        core_process(core, below(8) ? ports[chosen] : (uint32_t)below(PORTS), frame, length);
        core->collect = NULL;
        core_flush(core);
        core_unlock(core);
        free(frame);
        total += emitted.tail - emitted.head;
        emitted.head = emitted.tail;
    }
    ring_close(&emitted);
    return total;
}
