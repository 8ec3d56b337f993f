// The packet's headers and the program's limits.
// host/wire/packet.py has the same field table; a test compares it with p4c's output.

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> KOFN_PORT = 0x4b4e;
const bit<4> KOFN_VERSION = 4;

// 32 words of 256 bytes: 8 KiB of values, which a 9,000-byte MTU carries.
#define WORDS_MAX 32
// Contributions that a worker may make to a block.
const bit<8> PARTS = 4;
// Weight of one contribution: 1,023 gradients of 256 units.
const bit<32> WEIGHT_MAX = 261888;
// Slots of all jobs together; 4,096 x 8 KiB = 32 MiB of sums.
#define SLOTS 4096
// 64 workers of 256 jobs.
#define WORKERS 16384
// Racks of a job; one switch alone is one rack.
#define RACKS_MAX 16
// Racks of all slots of all jobs.
#define RACK_SLOTS 65536

// `recipient` of a block whose sum goes to all workers of the job. Otherwise one worker gets the sum, the others its header.
const bit<16> EVERYONE = 65535;

typedef bit<2048> word_t;

// `lanes` of votes, one bit an element. The answer has the bit planes of their counts.
const bit<4> VOTES = 4;

enum bit<4> kind_t {
    CONTRIBUTE = 0,
    PULL = 1,
    RESULT = 2,
    LATE = 3,
    STALE = 4,
    FORMAT_MISMATCH = 5,
    ADDED = 6
}

// `flags` of a FORMAT_MISMATCH: the slot's block has another number of words, so changing the scale does not help.
const bit<4> OTHER_WORDS = 1;

header ethernet_h {
    bit<48> dst_addr;
    bit<48> src_addr;
    bit<16> ether_type;
}

header ipv4_h {
    bit<4> version;
    bit<4> ihl;
    bit<8> dscp_ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// docs/explanation/protocol.md says what each field means.
header kofn_h {
    bit<4> version;
    kind_t kind;
    bit<8> job;
    bit<8> worker;
    bit<8> rack;
    bit<16> recipient;
    bit<4> lanes;
    bit<4> flags;
    bit<8> words;
    bit<16> k;
    bit<32> generation;
    bit<32> iteration;
    bit<32> block;
    bit<16> slot;
    bit<16> checksum;
    bit<16> scale;
    bit<16> count;
    bit<8> part;
    bit<8> bitmaps;
    bit<32> weight;
    bit<256> members;
}
const bit<16> UDP_AND_KOFN_LENGTH = 76;

// The members of one rack; RESULT and LATE of a tree have one for each rack.
header bitmap_h {
    bit<256> members;
}

header word_h {
    word_t value;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    kofn_h kofn;
    bitmap_h[RACKS_MAX] bitmaps;
    word_h[WORDS_MAX] words;
}
