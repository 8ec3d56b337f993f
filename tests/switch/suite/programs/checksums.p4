// Checksums: verified and updated, with conditions, with payload, over fields that end within a byte, invalid and
// variable ones, constants and metadata.

#include <core.p4>
#include <v1model.p4>

header Test_h {
    bit<8> number;  // a bit for each of the checksums below
    bit<4> four;
    bit<12> twelve;
    bit<16> first;
    bit<16> second;
    bit<16> third;
    bit<8> bits;    // of the variable field
    bit<8> wrong;
}

header Text_h {
    bit<8> a;
    varbit<64> text;
    bit<3> b;
    bit<5> c;
}

header Wide_h {
    bit<130> wide;
    bit<6> rest;
}

struct headers_t {
    Test_h test;
    Text_h text;
    Wide_h wide;
}

struct metadata_t {
    bit<7> seven;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.test);
        meta.seven = 5;
        transition select(hdr.test.number) {
            1 &&& 1: text;
            default: wide;
        }
    }
    state text {
        packet.extract(hdr.text, (bit<32>)hdr.test.bits);
        transition select(hdr.test.number) {
            2 &&& 2: wide;
            default: accept;
        }
    }
    state wide {
        packet.extract(hdr.wide);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum_with_payload(hdr.test.number[2:2] == 1,
            { hdr.test.number, hdr.test.four, hdr.test.twelve, hdr.text.text }, hdr.test.first, HashAlgorithm.csum16);
        verify_checksum(hdr.test.number[3:3] == 1 && hdr.text.isValid(),
            { hdr.text.text, hdr.text.b, hdr.text.c, hdr.test.four, hdr.test.twelve }, hdr.test.second,
            HashAlgorithm.csum16);
        verify_checksum(hdr.test.number[4:4] == 1,
            { hdr.wide.wide, hdr.wide.rest, meta.seven, 9w3, hdr.test.twelve, 4w0 }, hdr.test.third,
            HashAlgorithm.crc16);
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.test.wrong = (bit<8>)standard.checksum_error;
        meta.seven = hdr.test.bits[6:0];
        if (hdr.test.number[7:7] == 1) { hdr.text.setInvalid(); }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.test.number[6:6] == 1) { hdr.wide.rest = 3; }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum_with_payload(hdr.test.number[5:5] == 1,
            { hdr.test.number, hdr.test.four, hdr.test.twelve, hdr.text.text }, hdr.test.first, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.test.number[5:5] == 1,
            { hdr.test.number, hdr.test.four, hdr.test.twelve, hdr.wide.wide, hdr.wide.rest }, hdr.test.second,
            HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.text.isValid(), { hdr.text, hdr.wide, meta.seven, 1w1 }, hdr.test.third,
            HashAlgorithm.crc16);
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.test);
        packet.emit(hdr.wide);
        packet.emit(hdr.text);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
