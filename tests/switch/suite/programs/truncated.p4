// Truncated packets whose checksum covers the payload: the limit cuts the payload, without subtracting the headers.
#include <core.p4>
#include <v1model.p4>

header ask_h {
    bit<8> op;
    bit<8> bytes;
    bit<16> sum;
    bit<16> check;
}
struct headers_t { ask_h ask; }
struct metadata_t { }

parser CutParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        transition accept;
    }
}
control NoCheck(inout headers_t hdr, inout metadata_t meta) { apply { } }
control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (hdr.ask.op == 1) { truncate((bit<32>)hdr.ask.bytes); }
    }
}
control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.ask.op == 2) { truncate((bit<32>)hdr.ask.bytes); }
        if (hdr.ask.op == 3 && standard.instance_type == 0) { truncate((bit<32>)hdr.ask.bytes); clone(CloneType.E2E, 5); }
        hdr.ask.op = hdr.ask.op & 0x7f;
    }
}
control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum_with_payload(true, { hdr.ask.op, hdr.ask.bytes }, hdr.ask.sum, HashAlgorithm.csum16);
        update_checksum_with_payload(true, { hdr.ask.op, hdr.ask.bytes }, hdr.ask.check, HashAlgorithm.crc16);
    }
}
control CutDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(CutParser(), NoCheck(), ingress(), egress(), Update(), CutDeparser()) main;
