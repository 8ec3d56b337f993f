// Value sets: of one field, of several that do not end on bytes, of more than 64 bits, used by two states.

#include <core.p4>
#include <v1model.p4>

header Test_h {
    bit<8> number;  // which of the cases below
    bit<4> four;
    bit<12> twelve;
    bit<8> path;    // the states passed, a bit each
}

header Wide_h {
    bit<70> a;
    bit<10> b;
}

struct headers_t {
    Test_h test;
    Wide_h wide;
}

struct metadata_t {
    bit<8> path;
}

struct pair_t {
    bit<4> four;
    bit<12> twelve;
}

struct wide_t {
    bit<70> a;
    bit<10> b;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    value_set<bit<12>>(4) one_field;
    value_set<pair_t>(2) two_fields;
    value_set<wide_t>(8) wide_fields;

    state start {
        packet.extract(hdr.test);
        meta.path = 1;
        transition select(hdr.test.number) {
            1: by_one;
            2: by_two;
            3: by_wide;
            default: accept;
        }
    }
    state by_one {
        transition select(hdr.test.twelve) {
            one_field: known;
            5: five;
            default: accept;
        }
    }
    state by_two {
        transition select(hdr.test.four, hdr.test.twelve) {
            (0, 0): five;
            two_fields: by_one_too;
            default: accept;
        }
    }
    state by_one_too {
        meta.path = meta.path | 2;
        transition select(hdr.test.twelve) {
            one_field: known;
            default: accept;
        }
    }
    state by_wide {
        packet.extract(hdr.wide);
        transition select(hdr.wide.a, hdr.wide.b) {
            wide_fields: known;
            default: accept;
        }
    }
    state known {
        meta.path = meta.path | 4;
        transition accept;
    }
    state five {
        meta.path = meta.path | 8;
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.test.path = meta.path;
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.test);
        packet.emit(hdr.wide);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
