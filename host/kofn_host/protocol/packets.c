/* The switch's packets: this part finds the request of each answer, and checks that the answer fits the job.
 *
 * This part does not keep results (results.c) and does not choose what to send next (requests.c).
 */
#include "core_parts.h"

#include <inttypes.h>
#include <string.h>

/* Whether the sum goes to another worker, so that the answer has the sum's members only. */
static int is_short(const struct core *core, const struct header *answer) {
    const int sum = answer->kind == KOFN_RESULT || answer->kind == KOFN_LATE;
    return sum && answer->recipient != KOFN_EVERYONE && answer->recipient != place_of(core, core->rank);
}

/* Fail unless the number of words is right: a sum has the words of a sum in these lanes, and a short sum has none. A refusal has
 * the words of its request: the words of the slot's block, unless FORMAT_MISMATCH says that they differ. */
static int check_words(struct core *core, const struct header *answer) {
    const int sum = answer->kind == KOFN_RESULT || answer->kind == KOFN_LATE;
    const int64_t words = answer->block >= core->total ? 0
                          : sum                        ? layout_sum_words(&core->layout, answer->block, answer->lanes)
                                                       : layout_words(&core->layout, answer->block, answer->lanes);
    const int other = answer->kind == KOFN_FORMAT_MISMATCH && answer->flags == KOFN_OTHER_WORDS;
    if (is_short(core, answer) && !answer->words)
        return 0;
    if (words && other != (answer->words == words))
        return 0;
    return core_fail(core,
                     "block %" PRIu32 " of iteration %" PRIu32 " is summed in lanes of code %d with another number of words"
                     " than by worker %d, whose blocks have %" PRId64 " in lanes of %" PRId64
                     " bits: all workers of a job must have the same job.words and compress.codec",
                     answer->block, answer->iteration, answer->lanes, core->rank, core->layout.words, core->layout.widest);
}

static int64_t rank_of(const struct core *core, uint16_t place) {
    return (int64_t)place / RACK_PLACES * core->rack_workers + place % RACK_PLACES;
}

/* Fail unless a sum's recipient is the recipient that this worker knows; otherwise the sum's values might be lost. */
static int check_recipient(struct core *core, const struct header *answer) {
    if (!core->recipient || answer->iteration != core->iteration ||
        answer->recipient == requests_recipient(core, answer->block))
        return 0;
    return core_fail(core,
                     "block %" PRIu32 " of iteration %" PRIu32 " is summed for worker %" PRId64 ", here it is worker %" PRId64
                     "'s: the workers' plans have parted",
                     answer->block, answer->iteration, rank_of(core, answer->recipient), core->recipient[answer->block]);
}

static int check_racks(struct core *core, const struct header *answer) {
    const int wanted = core->racks > 1 ? core->racks : 0; /* history.ahead has room for as many */
    return answer->bitmaps == wanted
               ? 0
               : core_fail(core, "a result must have %d member bitmaps in a job with job.racks = %d, got %d", wanted,
                           core->racks, answer->bitmaps);
}

/* The members of all racks: in a tree they are in front of the values, otherwise in the header. */
static void members_of(const struct header *answer, const uint8_t *body, uint64_t *members) {
    if (!answer->bitmaps)
        memcpy(members, answer->members, sizeof answer->members);
    for (int rack = 0; rack < answer->bitmaps; rack++) {
        uint64_t parts[KOFN_PARTS];
        header_members(body + rack * KOFN_MEMBERS_BYTES, parts);
        members[member_word(rack, 0)] = parts[0];
    }
}

/* Handle the switch's result of a block. */
static int result_in(struct core *core, struct packet *packet) {
    const struct header *header = &packet->header;
    if (header->block >= core->total)
        return 0; /* another job's: ignored */
    if (check_words(core, header) || check_racks(core, header) || check_recipient(core, header))
        return -1;
    struct result result = {
        .values = packet->body + core->history.ahead,
        .size = packet->size - (int32_t)core->history.ahead,
        .scale = header->scale,
        .lanes = header->lanes,
        .k = header->k,
        .count = header->count,
        .weight = header->weight,
    };
    members_of(header, packet->body, result.members);
    if (core->probe.asked)
        link_probe_passed(core, header, &result);
    const int uses = header->flags & ~KOFN_AGAIN, told = header->kind == KOFN_RESULT && uses > 1 && uses <= LANE_CODES;
    const int noted = results_note(core, header->iteration, header->block, &result, told ? uses - 1 : -1,
                           (header->flags & KOFN_AGAIN) != 0);
    packet->taken = noted > 0;
    return noted < 0 ? -1 : 0;
}

/* The slot has a later block. An awaited request stays in flight, so that the timer retransmits it. */
static int stale(struct core *core, struct flight *flight, double now) {
    core->statistics.stale++;
    in_flight_heard(&core->in_flight, now);
    return instruct_ask_peers(core, flight, core->generation);
}

/* The slot sums at another scale or in other lanes: encode again, or PULL in the slot's lanes if the other workers have
 * finished. */
static int refused(struct core *core, struct flight *flight, const struct header *answer, double now) {
    core->statistics.refused++;
    if (check_words(core, answer))
        return -1;
    const struct header mine = flight->header;
    const int pulls = mine.kind == KOFN_PULL; /* its scale is ignored */
    if (mine.lanes == answer->lanes && (pulls || mine.scale == answer->scale))
        return 0; /* the answer to an earlier attempt, or a copy: networks duplicate and delay packets */
    core->slot_lanes[mine.block] = (int8_t)answer->lanes;
    in_flight_remove(&core->in_flight, flight);
    if (pulls || core_left_behind(core))
        return requests_pull(core, now);
    core->in_flight.disordered = 1;
    struct instruction *again = instruct(core, ENCODE_AGAIN, mine.block);
    if (!again)
        return core_without_memory(core);
    again->part = mine.part;
    again->counts = mine.count;
    again->scale = answer->scale;
    again->lanes = answer->lanes;
    return 0;
}

/* A leaf wants this contribution again, so that the leaf's open buffer leaves. No packet was lost, so the flight's times stay: the
 * instruction's launch is negative. */
static int repeat(struct core *core, const struct flight *flight, double now) {
    const int in_switch = flight->header.kind == KOFN_CONTRIBUTE && flight->sent_s <= now;
    return in_switch ? instruct_send(core, &flight->header, flight->values, flight->size, -flight->launch) : 0;
}

/* Handle STALE, FORMAT_MISMATCH or ADDED; ignore it unless its request is in flight. */
static int not_taken(struct core *core, const struct header *answer, double now) {
    if (answer->iteration != core->iteration || answer->block >= core->total || answer->part >= KOFN_PARTS)
        return 0;
    struct flight *flight = core->in_flight.by_request[request_of(answer->block, answer->part)];
    if (!flight)
        return 0;
    return answer->kind == KOFN_ADDED   ? repeat(core, flight, now)
           : answer->kind == KOFN_STALE ? stale(core, flight, now)
                                        : refused(core, flight, answer, now);
}

/* Whether a packet's iteration is so far ahead that no worker can have reached it. Then the two 16-bit words of the iteration
 * were exchanged on the way, which the checksum does not detect. This exchange changes the iteration by a multiple of
 * EXCHANGED. */
static int is_impossible(const struct core *core, const struct header *header) {
    enum { EXCHANGED = 65535 };
    return core->iteration && (int64_t)header->iteration - core->iteration >= EXCHANGED;
}

static int packet_in(struct core *core, struct packet *packet, double now) {
    const struct header *header = &packet->header;
    if (header->job != core->job || header->kind < KOFN_RESULT || header->kind > KOFN_ADDED || is_impossible(core, header)) {
        core->statistics.foreign++;
        return 0;
    }
    if (header->generation != core->generation) {
        core->statistics.other_generation++;
        return 0;
    }
    if (header->kind == KOFN_RESULT || header->kind == KOFN_LATE)
        return result_in(core, packet);
    if (results_follow(core, now))
        return -1;
    const int heard = link_probe_hears(core, header, now) | slot_query_hears(&core->query, header);
    return heard ? 0 : not_taken(core, header, now);
}

int core_packets_in(struct core *core, struct packet *packets, int64_t count, double now) {
    for (int64_t at = 0; at < count; at++)
        if (packet_in(core, packets + at, now))
            return -1;
    return results_follow(core, now);
}

int core_datagram_in(struct core *core, const uint8_t *header, const uint8_t *body, int64_t size, double now) {
    struct packet packet = {.header = header_read(header), .body = history_buffer(&core->history), .size = (int32_t)size};
    if (!packet.body)
        return core_without_memory(core);
    memcpy(packet.body, body, (size_t)(size < core->history.room ? size : core->history.room));
    const int failed = packet_in(core, &packet, now);
    if (!packet.taken)
        history_release(&core->history, packet.body);
    return failed;
}
