// The pipeline's metadata: a packet's verdict and its job's numbers, a leaf's slot, and the digest for the controller.

// The verdict on a kofn packet, or on a frame that is not forwarded, which is also the index of its counter.
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
    OLD_GENERATION = 22,
    OVERLAP = 23,
    ASKED = 24,
    SENT = 25,
    PASSED = 26,
    HEARD = 27,
    IGNORED = 28,
    AHEAD = 29,
    WRONG_SOURCE = 30
}
#define VERDICTS 31

// The accumulators' operation on a packet's words.
enum bit<2> mode_t {
    SKIP = 0,   // leave packet and slot as they are
    STORE = 1,  // slot := packet
    ADD = 2,    // slot, packet := slot + packet, lane by lane
    READ = 3    // packet := slot
}

const bit<2> TELL_NONE = 0;
const bit<2> TELL_LEAF = 1;
const bit<2> TELL_ALL = 2;
const bit<2> TELL_WORKER = 3;

// Phases of a leaf's slot.
const bit<2> OPEN = 1;
const bit<2> DONE = 2;
const bit<2> GONE = 3;  // the root's slot has moved on

// A leaf's slot and its two buffers (leaf.p4).
struct leaf_t {
    bit<96> block_id;
    bit<32> format;        // scale, words, lanes
    bit<2> phase;
    bit<1> confirmed;      // the root has this format
    bit<1> brief;          // the result came without its sum
    bit<1> at;             // the open buffer
    bit<256> taken;
    bit<256> acked;
    bit<16> missing;       // counted contributions that the root still needs; of a result: its k
    bit<256> open_set;
    bit<16> open_count;
    bit<32> open_weight;
    bit<256> sent_set;     // empty when acknowledged
    bit<16> sent_count;
    bit<32> sent_weight;
    bit<16> last;          // the port that the open buffer's latest contribution came from; 0: none, or told already
}

struct metadata_t {
    verdict_t verdict;
    mode_t mode;
    bool refused;          // the verdict blames the sender, whose port is counted
    bool closes;           // this packet completes its block
    bool counted;          // this packet is a contribution that counts towards k
    bit<16> addends;       // contributions in this packet
    bit<16> k;             // counted contributions that complete a block
    bit<16> room;          // contributions that fit into a lane without overflow
    bit<16> most;          // workers whose contributions this sender may put into one packet
    bit<32> generation;    // of the job's slots
    bit<16> group;         // multicast group of the job's workers, for results
    bit<32> slot;          // index into every slot register
    bit<32> turn;          // iterations that a slot may advance at once: the job's number of slots
    bit<32> buffer;        // index of the words' sums: of a slot, or of one of a leaf's two buffers
    bit<4> parts;          // contributions that a worker may make to a block
    word_t high;           // the top bit of every lane
    bit<4> lanes;          // lanes of the slot's block
    bit<8> remaining;      // words still to parse
    bit<8> racks;          // racks of the job, 0: one switch without a tree
    bool from_leaf;        // the sender is a leaf switch
    bool from_root;        // the sender is the root
    bit<8> rack;           // the sender's at the root; this switch's at a leaf
    bit<256> everyone;     // part 0 of all workers of a leaf's rack
    bit<9> onward;         // where a leaf passes a packet on: the port towards the root, or a worker's
    bit<8> shift;          // an open buffer is due with missing >> shift contributions; 0: with a complete rack
    bit<16> slot_racks;    // racks with members in the slot, as a bitmap
    bit<2> tell;           // whom the root, or a leaf, tells about an open sum
    bool leaf;             // this switch is a leaf of the job's tree
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
