// Made from host/wire/packet.py by `make header`: the packet of docs/explanation/protocol.md in an
// Ethernet frame.
#pragma once

#define KOFN_PORT 19278
#define KOFN_HEADER_BYTES 64
#define KOFN_HEAD 106
#define KOFN_VERSION 3
#define KOFN_EVERYONE 255
#define KOFN_WEIGHT_UNIT 256
#define KOFN_WORD_BYTES 256
#define KOFN_MEMBERS_BYTES 32
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
