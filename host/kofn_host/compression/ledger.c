/* A worker's ledger, block by block, in memory that outlives the process (host/kofn_host/compression/ledger.py).
 *
 * A block's pending values and its record change together: the new values and the new record are written to the journal, one
 * store commits them, then they are applied. ledger_open() applies a committed change again, so a kill at any instruction leaves a
 * change complete or undone. A ledger that ends with its process (`in_place`) needs no copy of the values: they change in place.
 * Aggregated and discarded values exist only as checksums, which are linear: the sum of values times fixed odd factors, modulo
 * 2**64. Intended wrap-around uses unsigned numbers.
 */
#include "ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger_rows.h"
#include "values.h"

enum {
    PARTS = KOFN_PARTS,
    GENERATIONS = 2, /* contributions to the current iteration and to the previous one are kept */
    BATCH_BITS = 2,
    WEIGHT_BITS = 8,
    WEIGHT_UNIT = 1 << WEIGHT_BITS,
    WEIGHT_MOST = 1023 * WEIGHT_UNIT, /* the largest weight of a contribution */
    CHUNK_LANES = 1024,
};

/* Write pseudo-random factors (splitmix64), so that regular errors do not cancel out. */
void ledger_factors(uint64_t *factors, int64_t lanes) {
    for (int64_t i = 0; i < lanes; i++) {
        uint64_t bits = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
        factors[i] = (bits ^ bits >> 31) | 1;
    }
}

static uint64_t checksum(const uint64_t *factors, const int64_t *values, int64_t lanes) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < lanes; i++)
        sum += factors[i] * (uint64_t)values[i];
    return sum;
}

/* Write the checksum of each row of values. */
void ledger_checksums(const uint64_t *factors, const int64_t *values, int64_t rows, int64_t lanes, uint64_t *sums) {
    for (int64_t row = 0; row < rows; row++)
        sums[row] = checksum(factors, values + row * lanes, lanes);
}

/* Store a value after all earlier and before all later stores, as seen after a kill. */
static void store(int64_t *place, int64_t value) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(place, value, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Copy values; both places may be the same. */
static void copy(const int64_t *from, int64_t size, int64_t *to) {
    memmove(to, from, (size_t)size * sizeof *to);
}

/* -- one thread at a time */

static struct ledger *take(const struct ledger *taken) {
    struct ledger *ledger = (struct ledger *)taken;
    if (__atomic_exchange_n(&ledger->busy, 1, __ATOMIC_ACQUIRE)) {
        fputs("two threads change a ledger at once: its books would not balance\n", stderr);
        abort();
    }
    return ledger;
}

static void give(struct ledger **taken) {
    __atomic_store_n(&(*taken)->busy, 0, __ATOMIC_RELEASE);
}

#define ALONE(ledger) struct ledger *taken __attribute__((cleanup(give), unused)) = take(ledger)

static const int64_t SIZES[] = {[RESIDUAL_EXACT] = 8, [RESIDUAL_BFLOAT16] = 2, [RESIDUAL_INT8] = 1};

static void *kept_of(const struct ledger *ledger, int64_t block) {
    return (uint8_t *)ledger->pending + block * ledger->lanes * SIZES[ledger->residual];
}

/* The pending values of a block; they are in `room`, (lanes,), if the ledger does not keep them exactly. */
static const int64_t *values_in(const struct ledger *ledger, int64_t block, int64_t *room) {
    return kept_values((enum residual)ledger->residual, kept_of(ledger, block), ledger->shifts[block], ledger->lanes,
                       room);
}

static const int64_t *values_of(const struct ledger *ledger, int64_t block) {
    return values_in(ledger, block, ledger->values);
}

/* Begin a change of a block; returns its future record. */
static struct record *stage(const struct ledger *ledger, int64_t block) {
    struct journal *journal = ledger->journal;
    journal->moved = journal->withdrawn = 0;
    journal->record = ledger->records[block];
    return &journal->record;
}

/* The place of a block's staged values: the journal; in place, where values_of() finds the present values. */
static int64_t *staged_place(const struct ledger *ledger, int64_t block) {
    if (!ledger->in_place)
        return ledger->journal->values;
    return ledger->residual == RESIDUAL_EXACT ? kept_of(ledger, block) : ledger->values;
}

/* The block's values after the staged changes so far. */
static const int64_t *staged_values(const struct ledger *ledger, int64_t block) {
    return ledger->journal->moved ? staged_place(ledger, block) : values_of(ledger, block);
}

/* The place for all of the block's new values. */
static int64_t *restage_values(const struct ledger *ledger, int64_t block) {
    ledger->journal->moved = 1;
    return staged_place(ledger, block);
}

/* Apply the committed change; idempotent. */
static void apply(const struct ledger *ledger) {
    struct journal *journal = ledger->journal;
    const int64_t block = journal->committed - 1;
    const int64_t *values = staged_place(ledger, block);
    void *kept = kept_of(ledger, block);
    if (journal->moved && values != kept)
        keep((enum residual)ledger->residual, values, ledger->lanes, kept, &ledger->shifts[block]);
    ledger->records[block] = journal->record;
    if (journal->withdrawn)
        ledger->sent[journal->withdrawn - 1].iteration = 0;
    store(&journal->committed, 0);
}

/* Round the staged values to the kept bits, and discard the difference. */
static void discard_rounding(const struct ledger *ledger, int64_t block) {
    struct record *record = &ledger->journal->record;
    int64_t *values = staged_place(ledger, block);
    record->discarded += checksum(ledger->factors, values, ledger->lanes);
    ((struct ledger *)ledger)->lost += round_as_kept((enum residual)ledger->residual, values, ledger->lanes);
    record->discarded -= checksum(ledger->factors, values, ledger->lanes);
}

static void commit(const struct ledger *ledger, int64_t block) {
    if (ledger->journal->moved && ledger->residual != RESIDUAL_EXACT)
        discard_rounding(ledger, block);
    store(&ledger->journal->committed, block + 1);
    apply(ledger);
}

/* Apply the change that an earlier process has committed, if any. */
void ledger_open(const struct ledger *ledger) {
    if (ledger->journal->committed)
        apply(ledger);
}

static int64_t place_of(const struct ledger *ledger, int part, int64_t iteration, int64_t block) {
    return (part * GENERATIONS + iteration % GENERATIONS) * ledger->blocks + block;
}

static const struct sent *sent_as(const struct ledger *ledger, int part, int64_t iteration, int64_t block) {
    return &ledger->sent[place_of(ledger, part, iteration, block)];
}

/* The values of a contribution, as on the wire. */
static uint8_t *row_of(const struct ledger *ledger, int part, int64_t block, const struct sent *sent) {
    return ledger->packed + ((part * GENERATIONS + sent->row) * ledger->blocks + block) * ledger->room;
}

/* Whether a part is in flight: it was sent in this iteration, and its result is unknown. */
static int is_away(const struct ledger *ledger, int part, int64_t iteration, int64_t block) {
    return sent_as(ledger, part, iteration, block)->iteration == iteration &&
           ledger->records[block].settled >> PARTS < iteration;
}

static int64_t waiting(const struct record *record) {
    return record->entered_weight - record->aggregated_weight - record->discarded_weight;
}

/* The waiting weight that no part other than `but` contributes to this iteration. */
static int64_t unsent(const struct ledger *ledger, int64_t iteration, int64_t block, int but) {
    int64_t weight = waiting(&ledger->records[block]);
    for (int part = 0; part < PARTS; part++)
        if (part != but && is_away(ledger, part, iteration, block))
            weight -= sent_as(ledger, part, iteration, block)->weight;
    return weight;
}

/* The earlier of two iterations; 0 means none. */
static int64_t earlier(int64_t first, int64_t second) {
    return !second || (first && first < second) ? first : second;
}

/* A share of a value, in 1 / WEIGHT_UNIT, rounded down; never overflows. */
static inline int64_t share_of(int64_t value, int64_t share) {
    if (share == WEIGHT_UNIT)
        return value;
    return (value >> WEIGHT_BITS) * share + ((value & (WEIGHT_UNIT - 1)) * share >> WEIGHT_BITS);
}

/* Add a share of a gradient to the pending values; discard the rest. */
static void enter(const struct ledger *ledger, const float *gradient, int64_t size, int64_t share, const int64_t *before,
                  int64_t *values, struct record *record) {
    uint64_t all = 0, kept = 0;
#pragma GCC ivdep
    for (int64_t i = 0; i < size; i++) {
        const int64_t value = fixed_of(gradient[i], (double)((int64_t)1 << FRACTION_BITS));
        const uint64_t left = (uint64_t)share_of(value, share);
        values[i] = (int64_t)((uint64_t)before[i] + left);
        all += ledger->factors[i] * (uint64_t)value;
        kept += ledger->factors[i] * left;
    }
    copy(before + size, ledger->lanes - size, values + size);
    record->gradients += all;
    record->discarded += all - kept;
    record->entered_weight += WEIGHT_UNIT;
    record->discarded_weight += WEIGHT_UNIT - share;
}

/* The share of a gradient that enters a block whose latest sum is that of iteration `settled`: the whole gradient if no sum has
 * closed since the gradient was begun. */
static int64_t share_in(const struct gradient *gradient, int64_t settled) {
    if (settled < gradient->key >> BATCH_BITS)
        return WEIGHT_UNIT;
    return settled >= gradient->now ? gradient->closed_share : gradient->open_share;
}

/* Enter a gradient into a block, unless the block has this gradient or a later one. */
static void add(const struct ledger *ledger, const struct gradient *gradient, int64_t block) {
    const int64_t first = block * ledger->lanes, rest = gradient->size - first;
    const struct record *before = &ledger->records[block];
    if (before->entered >= gradient->key)
        return;
    struct record *record = stage(ledger, block);
    const int64_t held = rest < 0 ? 0 : rest < ledger->lanes ? rest : ledger->lanes;
    const int64_t settled = before->settled >> PARTS, computed = gradient->key >> BATCH_BITS;
    const int64_t share = share_in(gradient, settled);
    enter(ledger, gradient->values + first, held, share, values_of(ledger, block), restage_values(ledger, block), record);
    const int64_t others = unsent(ledger, gradient->begun, block, PARTS) ? record->late : 0;
    record->late = earlier(others, share && settled >= computed ? computed : 0);
    record->entered = gradient->key;
    commit(ledger, block);
}

void ledger_add(const struct ledger *ledger, const struct gradient *gradient, const int64_t *blocks, int64_t count) {
    ALONE(ledger);
    for (int64_t at = 0; at < count; at++)
        add(ledger, gradient, blocks[at]);
}

void ledger_look(const struct ledger *ledger, const struct gradient *gradient, uint64_t *high, uint64_t *low,
                 uint64_t *largest) {
    ALONE(ledger);
    for (int64_t block = 0; block < ledger->blocks; block++) {
        if (gradient)
            add(ledger, gradient, block);
        measure(values_of(ledger, block), ledger->lanes, high + block, low + block, largest + block);
    }
}

/* Add a row's decoded lanes to values (`sign` 0), or subtract them (-1). Returns the checksum of the added values. */
static uint64_t add_row(const struct ledger *ledger, const uint8_t *row, const struct sent *sent, int64_t sign,
                        const int64_t *before, int64_t *values) {
    const int width = (int)LANE_WIDTHS[sent->lanes], votes = !ledger->most[sent->lanes];
    const int shift = FRACTION_BITS - sent->scale;
    int32_t lanes[CHUNK_LANES];
    uint64_t sum = 0;
    for (int64_t at = 0, size; at < ledger->lanes; at += size) {
        size = ledger->lanes - at < CHUNK_LANES ? ledger->lanes - at : CHUNK_LANES;
        unpack(row + at * width / 8, size, width, !votes, lanes);
#pragma GCC ivdep
        for (int64_t i = 0; i < size; i++) {
            const int64_t steps = votes ? 2 * (int64_t)lanes[i] - 1 : lanes[i];
            const uint64_t value = (uint64_t)((steps ^ sign) - sign) << shift;
            values[at + i] = (int64_t)((uint64_t)before[at + i] + value);
            sum += ledger->factors[at + i] * value;
        }
    }
    return sum;
}

/* The pending values of a block without the values that are in flight as other parts. */
static const int64_t *values_for(const struct ledger *ledger, int part, int64_t iteration, int64_t block) {
    const int64_t *values = values_of(ledger, block);
    for (int other = 0; other < PARTS; other++)
        if (other != part && is_away(ledger, other, iteration, block)) {
            const struct sent *sent = sent_as(ledger, other, iteration, block);
            add_row(ledger, row_of(ledger, other, block, sent), sent, -1, values, ledger->values);
            values = ledger->values;
        }
    return values;
}

/* Encode values as lanes of this code at a scale into a row. */
static void encode(const struct ledger *ledger, const int64_t *values, int code, int64_t scale, uint8_t *row) {
    const int width = (int)LANE_WIDTHS[code], shift = (int)(FRACTION_BITS - scale);
    const int64_t most = ledger->most[code];
    int32_t lanes[CHUNK_LANES];
    if (!most)
        return pack_votes(values, ledger->lanes, row);
    if (width == 32)
        return pack_steps_32(values, ledger->lanes, shift, most, (uint32_t *)row);
    for (int64_t at = 0, size; at < ledger->lanes; at += size) {
        size = ledger->lanes - at < CHUNK_LANES ? ledger->lanes - at : CHUNK_LANES;
        round_all(values + at, size, shift, most, lanes);
        pack(lanes, size, width, row + at * width / 8);
    }
}

/* Whether an earlier iteration's contribution must stay in its row: reconciliation may still need it. */
static int is_kept(const struct ledger *ledger, int64_t iteration, const struct sent *before) {
    return before->iteration && (!ledger->core || ledger->core->given < iteration);
}

/* Record a contribution before it is sent: `packed` has `size` bytes; if it is null, encode the waiting values. */
static void note(const struct ledger *ledger, int64_t iteration, int part, int lanes, int64_t block, int64_t scale,
                 const uint8_t *packed, int64_t size) {
    struct sent *sent = &ledger->sent[place_of(ledger, part, iteration, block)];
    struct sent *before = &ledger->sent[place_of(ledger, part, iteration - 1, block)];
    const int kept = is_kept(ledger, iteration, before);
    store(&sent->iteration, 0);
    if (!kept)
        store(&before->iteration, 0);
    sent->row = kept ? !before->row : before->row;
    uint8_t *row = row_of(ledger, part, block, sent);
    if (packed)
        memcpy(row, packed, (size_t)size);
    else
        encode(ledger, values_for(ledger, part, iteration, block), lanes, scale, row);
    sent->scale = (int32_t)scale, sent->lanes = (int16_t)lanes;
    sent->weight = unsent(ledger, iteration, block, part);
    sent->late = ledger->records[block].late;
    store(&sent->iteration, iteration);
}

void ledger_note(const struct ledger *ledger, int64_t iteration, int part, int lanes, const int64_t *blocks,
                 int64_t count, const int64_t *scale, const uint8_t *packed, int64_t size) {
    ALONE(ledger);
    for (int64_t at = 0; at < count; at++)
        note(ledger, iteration, part, lanes, blocks[at], scale[at], packed + at * size, size);
}

void ledger_send(const struct ledger *ledger, const struct gradient *gradient, int64_t iteration, int part, int lanes,
                 const int64_t *blocks, int64_t count, const int64_t *scale) {
    ALONE(ledger);
    for (int64_t at = 0; at < count; at++) {
        if (gradient)
            add(ledger, gradient, blocks[at]);
        if (sent_as(ledger, part, iteration, blocks[at])->iteration != iteration)
            note(ledger, iteration, part, lanes, blocks[at], scale[blocks[at]], NULL, 0);
    }
}

void ledger_left_over(const struct ledger *ledger, int64_t iteration, const int64_t *blocks, int64_t count,
                      int64_t *values) {
    for (int64_t at = 0; at < count; at++) {
        const struct sent *sent = sent_as(ledger, 0, iteration, blocks[at]);
        const int64_t *sendable = values_for(ledger, 0, iteration, blocks[at]);
        add_row(ledger, row_of(ledger, 0, blocks[at], sent), sent, -1, sendable, values + at * ledger->lanes);
    }
}

void ledger_pending(const struct ledger *ledger, const int64_t *blocks, int64_t count, int64_t *values) {
    for (int64_t at = 0; at < count; at++) {
        int64_t *room = values + at * ledger->lanes;
        const int64_t *found = values_in(ledger, blocks[at], room);
        if (found != room)
            copy(found, ledger->lanes, room);
    }
}

int64_t ledger_noted(const struct ledger *ledger, int part, const int64_t *blocks, int64_t count,
                     struct packed *found) {
    for (int64_t at = 0; at < count; at++) {
        const struct sent *even = sent_as(ledger, part, 0, blocks[at]), *odd = sent_as(ledger, part, 1, blocks[at]);
        const struct sent *sent = odd->iteration > even->iteration ? odd : even;
        if (!sent->iteration)
            return at;
        found[at] = (struct packed){
            .values = row_of(ledger, part, blocks[at], sent),
            .size = (int32_t)(ledger->lanes * LANE_WIDTHS[sent->lanes] / 8),
            .block = (int32_t)blocks[at],
            .scale = sent->scale,
            .lanes = sent->lanes,
            .weight = (uint32_t)(sent->weight < 1 ? 1 : sent->weight > WEIGHT_MOST ? WEIGHT_MOST : sent->weight),
        };
    }
    return -1;
}

/* Withdraw a part of blocks, which must not have reached the switch: the part counts as never sent. */
void ledger_withdraw(const struct ledger *ledger, int64_t iteration, int part, const int64_t *blocks, int64_t count) {
    ALONE(ledger);
    for (int64_t at = 0; at < count; at++) {
        const int64_t block = blocks[at];
        const struct sent *sent = sent_as(ledger, part, iteration, block);
        struct record *record = stage(ledger, block);
        if (is_away(ledger, part, iteration, block) && sent->weight > 0)
            record->late = earlier(unsent(ledger, iteration, block, PARTS) ? record->late : 0, sent->late);
        ledger->journal->withdrawn = 1 + place_of(ledger, part, iteration, block);
        commit(ledger, block);
    }
}

/* As add_row(), with decoded values. */
static uint64_t add_values(const struct ledger *ledger, const int64_t *decoded, int64_t sign, const int64_t *before,
                           int64_t *values) {
    for (int64_t i = 0; i < ledger->lanes; i++)
        values[i] = (int64_t)((uint64_t)before[i] + (uint64_t)((decoded[i] ^ sign) - sign));
    const uint64_t sum = checksum(ledger->factors, decoded, ledger->lanes);
    return sign ? -sum : sum;
}

/* Move some parts of a block from pending to aggregated (`sign` -1), or back (0). `decoded`: the parts' values, if known. */
static void move(const struct ledger *ledger, int64_t iteration, int64_t block, int64_t parts, int64_t sign,
                 const int64_t *decoded, struct record *record) {
    if (!parts)
        return;
    const int64_t *before = staged_values(ledger, block);
    int64_t *values = restage_values(ledger, block);
    uint64_t sum = decoded ? add_values(ledger, decoded, sign, before, values) : 0;
    for (int part = 0; part < PARTS; part++) {
        if (!(parts >> part & 1))
            continue;
        const struct sent *sent = sent_as(ledger, part, iteration, block);
        if (!decoded) {
            sum += add_row(ledger, row_of(ledger, part, block, sent), sent, sign, before, values);
            before = values;
        }
        record->aggregated_weight += sign ? sent->weight : -sent->weight;
    }
    record->aggregated -= sum;
}

/* The iteration of the first sum that closed without some of a block's pending gradients. `weight`: the weight that is pending
 * after the block's result of `iteration`, whose sum includes `parts`. */
static int64_t late_left(const struct ledger *ledger, int64_t iteration, int64_t block, int64_t parts, int64_t weight) {
    int64_t late = iteration;
    for (int part = 0; part < PARTS; part++) {
        const struct sent *sent = sent_as(ledger, part, iteration, block);
        if (sent->iteration != iteration || parts >> part & 1 || !sent->weight)
            continue;
        weight -= sent->weight;
        late = earlier(late, sent->late);
    }
    return weight ? earlier(late, ledger->records[block].late) : late;
}

/* Keep only a share of the pending values. */
static void fade(const struct ledger *ledger, int64_t block, int64_t share, struct record *record) {
    const int64_t *before = staged_values(ledger, block);
    int64_t *values = restage_values(ledger, block);
    record->discarded += checksum(ledger->factors, before, ledger->lanes);
#pragma GCC ivdep
    for (int64_t i = 0; i < ledger->lanes; i++)
        values[i] = share_of(before[i], share);
    record->discarded -= checksum(ledger->factors, values, ledger->lanes);
}

/* Reduce the weight of gradients that still wait after a block has closed: they have missed a sum. */
static void miss_sum(const struct ledger *ledger, int64_t iteration, int64_t block, int64_t parts,
                       const struct fading *fading, struct record *record) {
    const int64_t weight = waiting(record);
    record->late = weight > 0 ? late_left(ledger, iteration, block, parts, weight) : 0;
    if (weight <= 0) {
        if (parts && !fading->feedback)
            fade(ledger, block, 0, record);
        return;
    }
    const int64_t share = iteration + 1 - record->late > fading->limit ? 0 : fading->share;
    if (share == WEIGHT_UNIT)
        return;
    const int64_t left = weight * share >> WEIGHT_BITS;
    fade(ledger, block, left ? share : 0, record);
    record->discarded_weight += weight - left;
}

static int is_news(const struct ledger *ledger, int64_t iteration, int64_t block) {
    return block >= 0 && block < ledger->blocks && ledger->records[block].settled >> PARTS < iteration;
}

/* The first place in `blocks` whose result has a part that was not sent; -1: none. */
static int64_t first_unsent(const struct ledger *ledger, int64_t iteration, const int64_t *blocks,
                            const int64_t *parts, int64_t count) {
    for (int64_t at = 0; at < count; at++) {
        if (!is_news(ledger, iteration, blocks[at]))
            continue;
        if (parts[at] >> PARTS)
            return at;
        for (int part = 0; part < PARTS; part++)
            if (parts[at] >> part & 1 && sent_as(ledger, part, iteration, blocks[at])->iteration != iteration)
                return at;
    }
    return -1;
}

int64_t ledger_settle(const struct ledger *ledger, int64_t iteration, const int64_t *blocks, const int64_t *parts,
                      int64_t count, struct fading fading, const int64_t *decoded) {
    ALONE(ledger);
    const int64_t bad = first_unsent(ledger, iteration, blocks, parts, count);
    for (int64_t at = 0; at < count && bad < 0; at++) {
        const int64_t block = blocks[at];
        if (!is_news(ledger, iteration, block))
            continue;
        struct record *record = stage(ledger, block);
        move(ledger, iteration, block, parts[at], -1, decoded ? decoded + at * ledger->lanes : 0, record);
        miss_sum(ledger, iteration, block, parts[at], &fading, record);
        record->settled = iteration << PARTS | parts[at];
        commit(ledger, block);
    }
    return bad;
}

/* Make this worker's parts of a block's latest result pending again, as late as the newest gradient. `known`: the other
 * workers' result has no part of this worker; otherwise their result is still to be settled. */
void ledger_take_back(const struct ledger *ledger, int64_t block, int64_t begun, int known, const int64_t *decoded) {
    ALONE(ledger);
    struct record *record = stage(ledger, block);
    const int64_t iteration = record->settled >> PARTS, parts = record->settled & ((1 << PARTS) - 1);
    if (unsent(ledger, begun, block, PARTS) == 0)
        record->late = record->entered >> BATCH_BITS;
    move(ledger, iteration, block, parts, 0, decoded, record);
    record->settled = (iteration - !known) << PARTS;
    commit(ledger, block);
}

/* Add another ledger's values (count, lanes) and records to the blocks from `first` on. */
void ledger_take_over(const struct ledger *ledger, int64_t first, int64_t count, const int64_t *values,
                      const struct record *records) {
    ALONE(ledger);
    for (int64_t at = 0; at < count; at++, values += ledger->lanes, records++) {
        struct record *record = stage(ledger, first + at);
        const int64_t *before = values_of(ledger, first + at), settled = records->settled >> PARTS << PARTS;
        int64_t *sum = restage_values(ledger, first + at);
        for (int64_t i = 0; i < ledger->lanes; i++)
            sum[i] = (int64_t)((uint64_t)before[i] + (uint64_t)values[i]);
        record->entered = records->entered > record->entered ? records->entered : record->entered;
        record->settled = settled > record->settled ? settled : record->settled;
        record->late = earlier(record->late, records->late);
        record->entered_weight += records->entered_weight;
        record->aggregated_weight += records->aggregated_weight;
        record->discarded_weight += records->discarded_weight;
        record->gradients += records->gradients;
        record->aggregated += records->aggregated;
        record->discarded += records->discarded;
        commit(ledger, first + at);
    }
}
