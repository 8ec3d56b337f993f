// Variable fields: extracted, emitted, assigned, compared, in checksums and hashes; invalid lengths.

#include <core.p4>
#include <v1model.p4>

header Test_h {
    bit<8> number;     // which of the cases below
    bit<32> bits;      // of the variable field in the first header
    bit<8> failure;    // the parser's error
    bit<8> equal;
    bit<16> checksum;  // of parts of all
    bit<32> hash;
}

header Odd_h {         // begins and ends within a byte
    bit<4> before;
    varbit<64> text;
    bit<4> after;
    bit<8> next_bytes;
}

header Long_h {
    varbit<320> text;
    bit<16> checksum;
}

struct headers_t {
    Test_h test;
    Odd_h one;
    Odd_h two;
    Odd_h[2] row;
    Long_h wide;
}

struct metadata_t {}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.test);
        packet.extract(hdr.one, hdr.test.bits);
        transition select(hdr.one.next_bytes) {
            0: accept;
            0x80 &&& 0x80: rows;
            0x40 &&& 0x40: long;
            default: second;
        }
    }
    state second {
        packet.extract(hdr.two, (bit<32>)hdr.one.next_bytes * 8);
        transition select(hdr.two.next_bytes) {
            0x20: second_again;
            default: accept;
        }
    }
    state second_again {  // has to leave room for what the field has
        packet.extract(hdr.two, 8);
        transition accept;
    }
    state rows {
        packet.extract(hdr.row.next, (bit<32>)hdr.one.next_bytes[6:0] * 8);
        transition select(hdr.row.last.after) {
            0xf: rows;
            default: accept;
        }
    }
    state long {
        packet.extract(hdr.wide, (bit<32>)hdr.one.next_bytes[5:0] * 8);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.wide.isValid(), { hdr.wide.text, hdr.test.number }, hdr.wide.checksum,
                        HashAlgorithm.csum16);
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.PacketTooShort) { hdr.test.failure = 1; }
        else if (standard.parser_error == error.StackOutOfBounds) { hdr.test.failure = 2; }
        else if (standard.parser_error == error.HeaderTooShort) { hdr.test.failure = 3; }
        else if (standard.parser_error == error.ParserInvalidArgument) { hdr.test.failure = 4; }
        if (standard.checksum_error == 1) { hdr.test.failure = 5; }

        hdr.test.equal = hdr.one == hdr.two ? 8w1 : 8w2;
        if (hdr.test.number == 1) {  // a header with its length
            hdr.two = hdr.one;
            hdr.two.after = 0xe;
        } else if (hdr.test.number == 2) {  // fields change places
            varbit<64> text = hdr.one.text;
            hdr.one.text = hdr.two.text;
            hdr.two.text = text;
        } else if (hdr.test.number == 3) {  // starts anew as zeros of the same length
            hdr.one.setInvalid();
            hdr.one.setValid();
            hdr.one.after = 5;
        } else if (hdr.test.number == 4) {  // was never there: no length
            hdr.two.setValid();
            hdr.two.after = 5;
        } else if (hdr.test.number == 5) {
            hdr.row.pop_front(1);
        } else if (hdr.test.number == 6) {
            hash(hdr.test.hash, HashAlgorithm.crc32, 32w0, { hdr.one.before, hdr.one.text, hdr.two.text, 4w3 },
                 33w0x100000000);
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.test.number == 7) { hdr.two = hdr.row[1]; }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(true, { hdr.test.number, hdr.one.text, hdr.test.equal, hdr.two }, hdr.test.checksum,
                        HashAlgorithm.csum16);
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.test);
        packet.emit(hdr.wide);
        packet.emit(hdr.two);
        packet.emit(hdr.row);
        packet.emit(hdr.one);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
