// Header unions and stacks of them: validity, extraction, assignment, comparison, push and pop.

#include <core.p4>
#include <v1model.p4>

header Test_h {
    bit<8> number;   // which of the cases below
    bit<8> seen;     // the valid headers afterwards
    bit<8> equal;
    bit<8> failure;
}

header Short_h {
    bit<8> tag;
    bit<8> value;
}

header Long_h {
    bit<8> tag;
    bit<16> value;
}

header Text_h {
    bit<8> tag;
    bit<8> bytes;
    varbit<32> text;
}

header_union Item {
    Short_h short;
    Long_h long;
    Text_h text;
}

struct headers_t {
    Test_h test;
    Item one;
    Item two;
    Item[3] row;
    Item[3] copy;
}

struct metadata_t {}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.test);
        transition select(packet.lookahead<bit<8>>()) {
            1: one_short;
            2: one_long;
            3: one_text;
            default: accept;
        }
    }
    state one_short { packet.extract(hdr.one.short); transition items; }
    state one_long { packet.extract(hdr.one.long); transition items; }
    state one_text {
        bit<16> front = packet.lookahead<bit<16>>();
        packet.extract(hdr.one.text, (bit<32>)front[7:0] * 8);
        transition items;
    }
    state items {
        transition select(packet.lookahead<bit<8>>()) {
            1: next_short;
            2: next_long;
            3: next_text;
            4: other_of_one;
            default: accept;
        }
    }
    state next_short { packet.extract(hdr.row.next.short); transition items; }
    state next_long { packet.extract(hdr.row.next.long); transition items; }
    state next_text {
        bit<16> front = packet.lookahead<bit<16>>();
        packet.extract(hdr.row.next.text, (bit<32>)front[7:0] * 8);
        transition items;
    }
    state other_of_one { packet.extract(hdr.one.short); transition accept; }  // the earlier header of `one` becomes invalid
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.PacketTooShort) { hdr.test.failure = 1; }
        else if (standard.parser_error == error.StackOutOfBounds) { hdr.test.failure = 2; }
        else if (standard.parser_error == error.HeaderTooShort) { hdr.test.failure = 3; }
        else if (standard.parser_error != error.NoError) { hdr.test.failure = 4; }

        if (hdr.test.number == 1) {
            hdr.one.short.setValid();
            hdr.one.short.value = 9;
        } else if (hdr.test.number == 2) {
            hdr.one.long.setInvalid();
        } else if (hdr.test.number == 3) {
            hdr.two = hdr.one;
            hdr.one.long.setValid();
            hdr.one.long.tag = 8;
        } else if (hdr.test.number == 4) {
            hdr.row[1].short.setValid();
            hdr.row[1].short.tag = 6;
        } else if (hdr.test.number == 5) {
            hdr.copy = hdr.row;
            hdr.copy[0].long.setValid();
            hdr.copy[0].long.value = 0x1234;
        } else if (hdr.test.number == 6) {
            hdr.row.push_front(1);
        } else if (hdr.test.number == 7) {
            hdr.row.pop_front(1);
        } else if (hdr.test.number == 8) {
            hdr.row.push_front(2);
            hdr.row[0].short.setValid();
            hdr.row[0].short.tag = 4;
        } else if (hdr.test.number == 9) {
            hdr.two = hdr.row[0];
            hdr.row[2] = hdr.one;
        } else if (hdr.test.number == 10) {
            hdr.two.text = hdr.one.text;  // may be invalid: then so is the target
            hdr.one.short = hdr.row[0].short;
        } else if (hdr.test.number == 11) {
            hdr.two = hdr.row[0];
            hdr.test.equal = hdr.two == hdr.one ? 8w1 : 8w2;
        } else if (hdr.test.number == 12) {
            hdr.test.equal = hdr.row[0] == hdr.row[1] ? 8w1 : 8w2;
        }
        hdr.test.seen[0:0] = (bit<1>)hdr.one.isValid();
        hdr.test.seen[1:1] = (bit<1>)hdr.two.isValid();
        hdr.test.seen[2:2] = (bit<1>)hdr.one.short.isValid();
        hdr.test.seen[3:3] = (bit<1>)hdr.row[0].short.isValid();
        hdr.test.seen[4:4] = (bit<1>)hdr.row[1].long.isValid();
        hdr.test.seen[5:5] = (bit<1>)hdr.copy[1].text.isValid();
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.test.number == 13) {  // in a copy's own headers
            hdr.one.long.setValid();
            hdr.one.long.value = 0x3333;
        }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.test);
        packet.emit(hdr.one);
        packet.emit(hdr.row);
        packet.emit(hdr.two);
        packet.emit(hdr.copy);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
