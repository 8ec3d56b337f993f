// Generated from host/wire/packet.py by `make header`: the packet of docs/reference/protocol.md.
//
// KOFN_AT_: a field's byte in an Ethernet frame. KOFN_FIELDS: FIELD(type, name, bits before it in the header, its bits)
// of each field except `members`, which fits no integer.
#pragma once

#define KOFN_PORT 19278
#define KOFN_HEADER_BYTES 68
#define KOFN_HEAD 110
#define KOFN_VERSION 4
#define KOFN_EVERYONE 65535
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
#define KOFN_AT_RACK 45
#define KOFN_AT_RECIPIENT 46
#define KOFN_AT_LANES 48
#define KOFN_AT_FLAGS 48
#define KOFN_AT_WORDS 49
#define KOFN_AT_K 50
#define KOFN_AT_GENERATION 52
#define KOFN_AT_ITERATION 56
#define KOFN_AT_BLOCK 60
#define KOFN_AT_SLOT 64
#define KOFN_AT_CHECKSUM 66
#define KOFN_AT_SCALE 68
#define KOFN_AT_COUNT 70
#define KOFN_AT_PART 72
#define KOFN_AT_BITMAPS 73
#define KOFN_AT_WEIGHT 74
#define KOFN_AT_MEMBERS 78
#define KOFN_CONTRIBUTE 0
#define KOFN_PULL 1
#define KOFN_RESULT 2
#define KOFN_LATE 3
#define KOFN_STALE 4
#define KOFN_FORMAT_MISMATCH 5
#define KOFN_ADDED 6

#define KOFN_FIELDS(FIELD) \
    FIELD(uint8_t, version, 0, 4) \
    FIELD(uint8_t, kind, 4, 4) \
    FIELD(uint8_t, job, 8, 8) \
    FIELD(uint8_t, worker, 16, 8) \
    FIELD(uint8_t, rack, 24, 8) \
    FIELD(uint16_t, recipient, 32, 16) \
    FIELD(uint8_t, lanes, 48, 4) \
    FIELD(uint8_t, flags, 52, 4) \
    FIELD(uint8_t, words, 56, 8) \
    FIELD(uint16_t, k, 64, 16) \
    FIELD(uint32_t, generation, 80, 32) \
    FIELD(uint32_t, iteration, 112, 32) \
    FIELD(uint32_t, block, 144, 32) \
    FIELD(uint16_t, slot, 176, 16) \
    FIELD(uint16_t, checksum, 192, 16) \
    FIELD(int16_t, scale, 208, 16) \
    FIELD(uint16_t, count, 224, 16) \
    FIELD(uint8_t, part, 240, 8) \
    FIELD(uint8_t, bitmaps, 248, 8) \
    FIELD(uint32_t, weight, 256, 32)
