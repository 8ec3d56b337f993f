// The hash algorithms of v1model, over whole bytes, over bits that fill none, over invalid headers, and into ranges.
#include <core.p4>
#include <v1model.p4>

header ask_h {
    bit<8> op;
    bit<64> result;
    bit<32> a;
    bit<5> b;
    bit<3> c;
    int<16> d;
    bit<72> wide;
}
header more_h { bit<24> e; }
struct headers_t { ask_h ask; more_h more; }
struct metadata_t { }

parser HashParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        transition select(hdr.ask.op) {
            0x80 &&& 0x80: more;
            default: accept;
        }
    }
    state more {
        packet.extract(hdr.more);
        transition accept;
    }
}
control NoCheck(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        bit<64> most = 0xffffffffffffffff;
        bit<8> op = hdr.ask.op & 0x7f;
        if (op == 0x00) { hash(hdr.ask.result, HashAlgorithm.crc32, 64w0, { hdr.ask.a, hdr.ask.d }, most); }
        if (op == 0x01) { hash(hdr.ask.result, HashAlgorithm.crc32_custom, 64w0, { hdr.ask.a, hdr.ask.d }, most); }
        if (op == 0x02) { hash(hdr.ask.result, HashAlgorithm.crc16, 64w0, { hdr.ask.a, hdr.ask.d }, most); }
        if (op == 0x03) { hash(hdr.ask.result, HashAlgorithm.crc16_custom, 64w0, { hdr.ask.a, hdr.ask.d }, most); }
        if (op == 0x04) { hash(hdr.ask.result, HashAlgorithm.csum16, 64w0, { hdr.ask.a, hdr.ask.d }, most); }
        if (op == 0x05) { hash(hdr.ask.result, HashAlgorithm.xor16, 64w0, { hdr.ask.a, hdr.ask.d }, most); }
        if (op == 0x06) { hash(hdr.ask.result, HashAlgorithm.identity, 64w0, { hdr.ask.a, hdr.ask.d }, most); }
        if (op == 0x10) { hash(hdr.ask.result, HashAlgorithm.crc32, 64w0, { hdr.ask.b, hdr.ask.wide }, most); }
        if (op == 0x11) { hash(hdr.ask.result, HashAlgorithm.crc16, 64w0, { hdr.ask.b, hdr.ask.wide }, most); }
        if (op == 0x12) { hash(hdr.ask.result, HashAlgorithm.csum16, 64w0, { hdr.ask.b, hdr.ask.wide }, most); }
        if (op == 0x13) { hash(hdr.ask.result, HashAlgorithm.xor16, 64w0, { hdr.ask.b, hdr.ask.wide }, most); }
        if (op == 0x14) { hash(hdr.ask.result, HashAlgorithm.identity, 64w0, { hdr.ask.b, hdr.ask.wide }, most); }
        if (op == 0x15) { hash(hdr.ask.result, HashAlgorithm.identity, 64w0, { hdr.ask.c }, most); }
        if (op == 0x16) { hash(hdr.ask.result, HashAlgorithm.crc32, 64w0, { 3w5, hdr.ask.c, 2w1, hdr.ask.a }, most); }
        if (op == 0x20) { hash(hdr.ask.result, HashAlgorithm.crc32, 16w1000, { hdr.ask.a }, 16w10); }
        if (op == 0x21) { hash(hdr.ask.result, HashAlgorithm.crc32, 16w1000, { hdr.ask.a }, 16w0); }
        if (op == 0x22) { hash(hdr.ask.b, HashAlgorithm.crc32, 16w0, { hdr.ask.a }, 32w0xffffffff); }
        if (op == 0x23) { hash(hdr.ask.wide, HashAlgorithm.crc16, 32w0, { hdr.ask.a }, 32w0x10000); }
        if (op == 0x30) { hash(hdr.ask.result, HashAlgorithm.crc32, 64w0, { hdr.ask.a, hdr.more.e }, most); }
        if (op == 0x31) { hash(hdr.ask.result, HashAlgorithm.csum16, 64w0, { hdr.more.e, hdr.ask.a }, most); }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { apply { } }
control NoUpdate(inout headers_t hdr, inout metadata_t meta) { apply { } }
control HashDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(HashParser(), NoCheck(), ingress(), egress(), NoUpdate(), HashDeparser()) main;
