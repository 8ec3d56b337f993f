// Generated from host/wire/packet.py by `make header`: the packet of docs/reference/protocol.md.
//
// KOFN_AT_: a field's byte in an Ethernet frame. KOFN_FIELDS: FIELD(type, name, bits before it in the header, its bits)
// of each field except `members`, which fits no integer.
#pragma once

#define KOFN_PORT 19278
#define KOFN_HEADER_BYTES 64
#define KOFN_HEAD 106
#define KOFN_VERSION 3
#define KOFN_EVERYONE 255
#define KOFN_WEIGHT_UNIT 256
#define KOFN_FRAME_BYTES 42
#define KOFN_WORD_BYTES 256
#define KOFN_WORDS_MAX 32
#define KOFN_PARTS 4
#define KOFN_MEMBERS_BYTES 32
#define KOFN_OTHER_WORDS 1
#define KOFN_AGAIN 8
#define KOFN_VOTE_WORDS 4
#define KOFN_VOTES 4
#define KOFN_AT_VERSION 42
#define KOFN_AT_KIND 42
#define KOFN_AT_JOB 43
#define KOFN_AT_WORKER 44
#define KOFN_AT_RECIPIENT 45
#define KOFN_AT_LANES 46
#define KOFN_AT_FLAGS 46
#define KOFN_AT_WORDS 47
#define KOFN_AT_K 48
#define KOFN_AT_GENERATION 50
#define KOFN_AT_ITERATION 54
#define KOFN_AT_BLOCK 58
#define KOFN_AT_SLOT 62
#define KOFN_AT_CHECKSUM 64
#define KOFN_AT_SCALE 66
#define KOFN_AT_COUNT 68
#define KOFN_AT_PART 69
#define KOFN_AT_WEIGHT 70
#define KOFN_AT_MEMBERS 74
#define KOFN_CONTRIBUTE 0
#define KOFN_PULL 1
#define KOFN_RESULT 2
#define KOFN_LATE 3
#define KOFN_STALE 4
#define KOFN_FORMAT_MISMATCH 5

#define KOFN_FIELDS(FIELD) \
    FIELD(uint8_t, version, 0, 4) \
    FIELD(uint8_t, kind, 4, 4) \
    FIELD(uint8_t, job, 8, 8) \
    FIELD(uint8_t, worker, 16, 8) \
    FIELD(uint8_t, recipient, 24, 8) \
    FIELD(uint8_t, lanes, 32, 4) \
    FIELD(uint8_t, flags, 36, 4) \
    FIELD(uint8_t, words, 40, 8) \
    FIELD(uint16_t, k, 48, 16) \
    FIELD(uint32_t, generation, 64, 32) \
    FIELD(uint32_t, iteration, 96, 32) \
    FIELD(uint32_t, block, 128, 32) \
    FIELD(uint16_t, slot, 160, 16) \
    FIELD(uint16_t, checksum, 176, 16) \
    FIELD(int16_t, scale, 192, 16) \
    FIELD(uint8_t, count, 208, 8) \
    FIELD(uint8_t, part, 216, 8) \
    FIELD(uint32_t, weight, 224, 32)
