// The packet's headers, and the metadata of the pipeline.
// host/wire/packet.py has the same field table; a test compares it with p4c's output.

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> KOFN_PORT = 0x4b4e;
const bit<4> KOFN_VERSION = 3;

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

// `recipient` of a block whose sum goes to all workers of the job. Otherwise one worker gets the sum, the others its header.
const bit<8> EVERYONE = 255;

typedef bit<2048> word_t;

// `lanes` of votes, one bit an element. The answer has the bit planes of their counts.
const bit<4> VOTES = 4;

enum bit<4> kind_t {
    CONTRIBUTE = 0,
    PULL = 1,
    RESULT = 2,
    LATE = 3,
    STALE = 4,
    FORMAT_MISMATCH = 5
}

// The verdict on a kofn packet, which is also the index of its counter.
enum bit<8> verdict_t {
    ADMITTED = 0,
    OPENED = 1,
    ADDED = 2,
    CLOSED = 3,
    LATE = 4,
    STALE = 5,
    FORMAT_MISMATCH = 6,
    DUPLICATE = 7,
    NOT_READY = 8,
    FULL = 9,
    TRUNCATED = 10,
    BAD_VERSION = 11,
    BAD_KIND = 12,
    BAD_LENGTH = 13,
    BAD_ITERATION = 14,
    BAD_PART = 15,
    BAD_COUNT = 16,
    BAD_CHECKSUM = 17,
    UNKNOWN_JOB = 18,
    UNKNOWN_LANES = 19,
    UNKNOWN_RECIPIENT = 20,
    WRONG_PORT = 21,
    OLD_GENERATION = 22
}
#define VERDICTS 23

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
    bit<8> recipient;
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
    bit<8> count;
    bit<8> part;
    bit<32> weight;
    bit<256> members;
}
const bit<16> UDP_AND_KOFN_LENGTH = 72;

header word_h {
    word_t value;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    kofn_h kofn;
    word_h[WORDS_MAX] words;
}

// The accumulators' operation on a packet's words.
enum bit<2> mode_t {
    SKIP = 0,   // leave packet and slot as they are
    STORE = 1,  // slot := packet
    ADD = 2,    // slot, packet := slot + packet, lane by lane
    READ = 3    // packet := slot
}

struct metadata_t {
    verdict_t verdict;
    mode_t mode;
    bool closes;           // this packet completes its block
    bool counted;          // this packet is a contribution that counts towards k
    bit<16> addends;       // contributions in this packet
    bit<16> k;             // counted contributions that complete a block
    bit<16> room;          // contributions that fit into a lane without overflow
    bit<16> most;          // workers whose contributions this sender may put into one packet
    bit<32> generation;    // of the job's slots
    bit<16> group;         // multicast group of the job's workers, for results
    bit<32> slot;          // index into every slot register
    word_t high;           // the top bit of every lane
    bit<4> lanes;          // lanes of the slot's block
    bit<8> remaining;      // words still to parse
}

// Sent when the first counted contribution of a worker's iteration reaches its slot; the controller measures blocking by it.
// BMv2 suppresses equal digests until they are acknowledged; the sequence number makes each one new.
struct arrival_t {
    bit<32> sequence;
    bit<8> job;
    bit<8> worker;
    bit<32> iteration;
    bit<8> verdict;        // a verdict_t: BMv2's P4Runtime takes no enum in a digest
    bit<48> timestamp;     // microseconds since the switch started
}
