/* Random calls and packets at a protocol core, under sanitizers: the memory that it reads is alive, and its
 * instructions are valid. Values are freed as soon as their block has closed, so a packet that is sent later would read
 * freed memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core.h"

enum { BLOCKS = 12, RANKS = 4 };

struct fuzz {
    struct core *core;
    uint64_t random;
    double now;
    uint8_t *values[BLOCKS + 1][KOFN_PARTS];
    struct instruction sent[256];
    int sent_count;
    long calls, sends, delivered, failed;
};

static uint64_t draw(struct fuzz *fuzz, uint64_t below) {
    fuzz->random ^= fuzz->random << 13, fuzz->random ^= fuzz->random >> 7, fuzz->random ^= fuzz->random << 17;
    return fuzz->random % below;
}

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void forget(struct fuzz *fuzz, int64_t block) {
    for (int part = 0; part < KOFN_PARTS; part++) {
        free(fuzz->values[block][part]);
        fuzz->values[block][part] = NULL;
    }
}

static void open_core(struct fuzz *fuzz) {
    const int64_t widest = draw(fuzz, 2) ? 32 : 16;
    const struct layout layout = {1 + (int64_t)draw(fuzz, BLOCKS), 4 * (1 + (int64_t)draw(fuzz, 3)), widest,
                                  (int64_t)draw(fuzz, 3)};
    const uint64_t halvings = draw(fuzz, 5);
    const int64_t slots = 2 << halvings, window = 1 << draw(fuzz, halvings + 1);
    if (fuzz->core)
        core_close(fuzz->core);
    for (int64_t block = 0; block <= BLOCKS; block++)
        forget(fuzz, block);
    const int32_t workers = RANKS * (int32_t)draw(fuzz, 2), racks = 1 + (int32_t)draw(fuzz, 2);
    fuzz->core = core_open(1, (int32_t)draw(fuzz, RANKS), &layout, slots, window, 0.05, 2 + (int64_t)draw(fuzz, 3), 4,
                           workers, racks, (int32_t)draw(fuzz, 2));
    check(fuzz->core != NULL, "no core");
    fuzz->sent_count = 0;
    core_enter(fuzz->core, 1);
}

static void follow(struct fuzz *fuzz, int failed) {
    const int64_t count = fuzz->core->instructions_count;
    const struct instruction *instructions = fuzz->core->instructions;
    core_done(fuzz->core);
    if (failed) {
        check(strlen(core_error(fuzz->core)) > 10, "an error without a word");
        fuzz->failed++;
        open_core(fuzz);
        return;
    }
    for (int64_t at = 0; at < count; at++) {
        const struct instruction *one = instructions + at;
        uint64_t sum = 0;
        for (int64_t byte = 0; one->kind == SEND && byte < one->size; byte++)
            sum += one->values[byte];
        check(one->kind != SEND || sum < UINT64_MAX, "unread");
        if (one->kind == SEND && fuzz->sent_count < 256)
            fuzz->sent[fuzz->sent_count++] = *one;
        fuzz->sends += one->kind == SEND;
        if (one->kind == DELIVER) {
            check(one->block < fuzz->core->total && !fuzz->core->open[one->block], "an open block is delivered");
            fuzz->delivered++;
            forget(fuzz, one->block);
        }
    }
    check(fuzz->core->open_count >= 0 && fuzz->core->waiting_count >= 0, "counts");
    check(!fuzz->core->in_flight.count || core_deadline_s(fuzz->core) < INFINITY, "in flight for ever");
}

static void begin(struct fuzz *fuzz) {
    struct core *core = fuzz->core;
    int32_t blocks[BLOCKS + 1];
    int64_t count = 0;
    const int all = (int)draw(fuzz, 2), jumps = core->open_count > 0;
    for (int32_t block = 0; block < core->total; block++)
        if (all || draw(fuzz, 2))
            blocks[count++] = block;
    if (!count || (jumps && draw(fuzz, 8)))
        return;
    if (jumps)
        for (int64_t block = 0; block <= BLOCKS; block++)
            forget(fuzz, block);
    const int32_t lanes = core->layout.widest == 32 ? (int32_t)draw(fuzz, 3) : 1 + (int32_t)draw(fuzz, 2);
    const int64_t next = core->iteration + 1 + (int64_t)(jumps ? draw(fuzz, 8) : 0);
    const int64_t first = (int64_t)draw(fuzz, 1 << 20);
    follow(fuzz, (jumps ? core_jump : core_begin)(core, next, fuzz->now, blocks, count, first, lanes));
}

static void contribute(struct fuzz *fuzz) {
    struct core *core = fuzz->core;
    const int32_t part = (int32_t)(draw(fuzz, 4) ? 0 : draw(fuzz, KOFN_PARTS));
    struct packed ready[BLOCKS + 1];
    int64_t count = 0;
    for (int32_t block = 0; block < core->total; block++) {
        const int32_t lanes = block == core->layout.blocks ? 0 : core->layout.widest == 32 ? (int32_t)draw(fuzz, 3) : 1;
        const int64_t words = block == core->layout.blocks ? core->layout.summary_words
                                                            : core->words[lanes];
        if (!core->iteration || !core->open[block] || fuzz->values[block][part] || draw(fuzz, 2))
            continue;
        if (core_left_behind(core))
            continue;
        uint8_t *values = fuzz->values[block][part] = calloc((size_t)words, KOFN_WORD_BYTES);
        ready[count++] = (struct packed){values, (int32_t)words * KOFN_WORD_BYTES, block, (int32_t)draw(fuzz, 3), lanes, 256};
    }
    if (count)
        follow(fuzz, core_contribute(core, ready, count, fuzz->now, part, (int32_t)draw(fuzz, 2), -1));
}

/* An answer to a sent packet, or to none. */
static void answer(struct fuzz *fuzz) {
    struct core *core = fuzz->core;
    uint8_t head[KOFN_HEADER_BYTES], body[KOFN_RACKS_MAX * KOFN_MEMBERS_BYTES + KOFN_WORDS_MAX * KOFN_WORD_BYTES] = {0};
    struct header header = {.version = KOFN_VERSION, .job = 1, .iteration = (uint32_t)(core->iteration + draw(fuzz, 3))};
    if (fuzz->sent_count) {
        header = header_read(fuzz->sent[draw(fuzz, (uint64_t)fuzz->sent_count)].header);
        header.iteration += draw(fuzz, 16) == 0;
    }
    header.kind = (uint8_t)(draw(fuzz, 4) ? KOFN_RESULT + draw(fuzz, 2) : draw(fuzz, 8));
    header.members[draw(fuzz, KOFN_PARTS)] = 3;
    header.count = 2, header.weight = 512, header.k = 2;
    if (header.kind == KOFN_RESULT || header.kind == KOFN_LATE) {
        header.bitmaps = (uint8_t)(core->racks > 1 ? core->racks : 0);
        body[KOFN_MEMBERS_BYTES - 1] = 3;
    }
    if (header.kind == KOFN_FORMAT_MISMATCH)
        header.scale = (int16_t)draw(fuzz, 3);
    if (!draw(fuzz, 64))
        ((uint8_t *)&header)[draw(fuzz, sizeof header)] ^= (uint8_t)(1u << draw(fuzz, 8));
    header_write(&header, head);
    const int64_t size = header.bitmaps * KOFN_MEMBERS_BYTES + header.words * KOFN_WORD_BYTES;
    if (size <= (int64_t)sizeof body)
        follow(fuzz, core_datagram_in(core, head, body, size, fuzz->now) || core_packets_done(core, fuzz->now));
}

static void read_results(struct fuzz *fuzz) {
    struct core *core = fuzz->core;
    uint32_t blocks[BLOCKS + 1];
    struct result results[BLOCKS + 1];
    uint64_t sum = 0;
    for (int64_t of = 0; (of = core_next_results(core, of)) >= 0; of++)
        for (int64_t at = core_results(core, of, blocks, results) - 1; at >= 0; at--)
            for (int64_t byte = 0; results[at].values && byte < results[at].size; byte++)
                sum += results[at].values[byte];
    check(sum < UINT64_MAX, "unread");
}

static void call(struct fuzz *fuzz) {
    struct core *core = fuzz->core;
    fuzz->calls++;
    fuzz->now += 1e-4 * (double)draw(fuzz, 100);
    switch (draw(fuzz, 24)) {
    case 0: case 1: case 2: begin(fuzz); break;
    case 3: case 4: case 5: case 6: contribute(fuzz); break;
    case 7: follow(fuzz, core_timer(core, fuzz->now)); break;
    case 8: follow(fuzz, core_ask_slot(core)); break;
    case 9: draw(fuzz, 20) ? (void)0 : core_regroup(core, (uint32_t)core->generation + 1); break;
    case 10: follow(fuzz, core_resume(core, fuzz->now)); break;
    case 11: core_others_reached(core, core->iteration + (draw(fuzz, 20) == 0)); break;
    case 12: read_results(fuzz); break;
    case 13:
        if (fuzz->sent_count) {
            const struct instruction *one = fuzz->sent + draw(fuzz, (uint64_t)fuzz->sent_count);
            core_mark_sent_at(core, one->block * KOFN_PARTS + one->part, one->launch, fuzz->now + 0.01);
        }
        break;
    case 14: fuzz->sent_count = 0; break;
    default: answer(fuzz);
    }
}

int main(int count, char **arguments) {
    struct fuzz fuzz = {.random = 88172645463325252u + (count > 2 ? strtoull(arguments[2], NULL, 10) : 1)};
    const double end = (double)clock() / CLOCKS_PER_SEC + (count > 1 ? atof(arguments[1]) : 1);
    open_core(&fuzz);
    while ((double)clock() / CLOCKS_PER_SEC < end)
        for (int at = 0; at < 1000; at++)
            call(&fuzz);
    printf("%ld calls, %ld packets sent, %ld blocks delivered, %ld refused\n", fuzz.calls, fuzz.sends, fuzz.delivered,
           fuzz.failed);
    for (int64_t block = 0; block <= BLOCKS; block++)
        forget(&fuzz, block);
    core_close(fuzz.core);
    return fuzz.delivered < 1000 || fuzz.failed < 1; /* else the run was too short to count */
}
