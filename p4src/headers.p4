// The packet's headers.
// common/kofn_common/wire/packet.py has the same field table; a test compares it with p4c's output.

#include "sizes.p4"

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<16> ETHERTYPE_IPV6 = 0x86DD;
const bit<8> PROTOCOL_UDP = 17;

// The row of a slot's members of one rack.
#define RACK_ROW(rack, slot) ((bit<32>)(rack ++ slot[SLOT_BITS - 1:0]))

typedef bit<2048> word_t;

enum bit<4> kind_t {
    CONTRIBUTE = 0,
    PULL = 1,
    RESULT = 2,
    LATE = 3,
    STALE = 4,
    FORMAT_MISMATCH = 5,
    ADDED = 6
}

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
