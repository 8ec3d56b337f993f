// Parsers: selects with masks, ranges, several keys, enums and Booleans; lookahead, advance, verify, errors, subparsers.

#include <core.p4>
#include <v1model.p4>

error { Unwanted }

enum bit<8> Kind {
    FIRST = 1,
    SECOND = 2
}

header Test_h {
    bit<8> number;
    bit<4> four;
    bit<12> twelve;
    bit<32> amount;   // bits to advance by
    bit<8> path;      // the states passed, a bit each
    bit<8> failure;   // the parser's error
    bit<16> looked;
}

header Odd_h {
    bit<3> a;
    bit<13> b;
    int<8> c;
}

header Wide_h {
    bit<100> a;
    bit<4> b;
}

struct headers_t {
    Test_h test;
    Odd_h odd;
    Wide_h wide;
}

struct metadata_t {
    bit<8> path;
    bool flag;
    bit<16> looked;
}

parser Odd(packet_in packet, inout headers_t hdr, inout bit<8> path, in bit<8> mark) {
    state start {
        packet.extract(hdr.odd);
        path = path | mark;
        transition select(hdr.odd.c) {
            8s5: five;
            default: accept;
        }
    }
    state five {
        path = path | 0x80;
        transition accept;
    }
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Odd() odd;

    state start {
        packet.extract(hdr.test);
        transition select(hdr.test.number, hdr.test.four, hdr.test.twelve) {
            (1, _, _): once;
            (2, 3, 0x100 .. 0x1ff): once;
            (2, 4w8 &&& 4w0xc, _): masked;
            (3, _, _): ahead;
            (4, _, _): skip;
            (5, _, 12w7): kind;
            (6 .. 8, _, _): verified;
            (9, _, _): wide;
            (10, _, _): endless;
            (11, _, _): header_ahead;
            default: accept;
        }
    }
    state once {
        odd.apply(packet, hdr, meta.path, 1);
        transition accept;
    }
    state masked {
        meta.path = 2;
        transition accept;
    }
    state ahead {
        bit<9> nine = packet.lookahead<bit<9>>();
        meta.looked = (bit<16>)nine;
        transition select(packet.lookahead<bit<2>>()) {
            1: once;
            2: masked;
            default: accept;
        }
    }
    state header_ahead {
        Odd_h odd_ahead = packet.lookahead<Odd_h>();
        meta.looked = (bit<16>)odd_ahead.b;
        transition accept;
    }
    state skip {
        packet.advance(hdr.test.amount);
        transition once;
    }
    state kind {
        Kind kind = (Kind)packet.lookahead<bit<8>>();
        transition select(kind) {
            Kind.FIRST: masked;
            Kind.SECOND: once;
            default: flags;
        }
    }
    state flags {
        meta.flag = packet.lookahead<bit<1>>() == 1;
        transition select(meta.flag, hdr.test.four) {
            (true, 1): masked;
            (false, _): once;
            default: accept;
        }
    }
    state verified {
        verify(hdr.test.number != 7, error.Unwanted);
        meta.path = 4;
        verify(hdr.test.four == 0 || hdr.test.number == 6, error.NoMatch);
        meta.path = 8;
        transition accept;
    }
    state wide {
        packet.extract(hdr.wide);
        transition select(hdr.wide.a, hdr.wide.b) {
            (0x123456789abcdef0123456789, 5): masked;
            (100w0xf000000000000000000000000 &&& 100w0xf000000000000000000000000, _): once;
            default: accept;
        }
    }
    state endless {  // until the packet ends
        odd.apply(packet, hdr, meta.path, 0x10);
        transition endless;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.NoError) { hdr.test.failure = 0; }
        else if (standard.parser_error == error.PacketTooShort) { hdr.test.failure = 1; }
        else if (standard.parser_error == error.ParserInvalidArgument) { hdr.test.failure = 2; }
        else if (standard.parser_error == error.NoMatch) { hdr.test.failure = 3; }
        else if (standard.parser_error == error.Unwanted) { hdr.test.failure = 4; }
        else { hdr.test.failure = 5; }
        hdr.test.path = meta.path;
        hdr.test.looked = meta.looked;
        if (hdr.odd.isValid()) { hdr.odd.c = -hdr.odd.c; }
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
        packet.emit(hdr.odd);
        packet.emit(hdr.test);
        packet.emit(hdr.wide);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
