// Clones, resubmitted, recirculated and truncated packets, and what their standard metadata is.
// `op` says what happens at first; egress writes what it sees into the header.
#include <core.p4>
#include <v1model.p4>

const bit<32> INGRESS_CLONE = 1;

header ask_h {
    bit<8> op;
    bit<8> session;
    bit<8> ingresses;  // counts passes, in the headers
    bit<8> egresses;
    bit<8> kept;
    bit<8> also;
    bit<8> lost;
    bit<8> type;
    bit<16> length;
    bit<16> rid;
    bit<7> pad1;
    bit<9> from;
    bit<7> pad2;
    bit<9> to;
    bit<16> seen;  // what ingress saw: instance_type << 12 | ingress_port
}
header extra_h { bit<32> data; }
header wide_h { bit<72> data; }
struct headers_t { ask_h ask; extra_h extra; wide_h wide; }
struct metadata_t {
    @field_list(1, 2) bit<8> kept;
    @field_list(2) bit<72> also;
    bit<8> lost;
    bit<16> seen;
}

parser CopiesParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        meta.lost = 9;
        transition select(hdr.ask.op) {
            0x40 &&& 0xc0: parse_extra;
            default: accept;
        }
    }
    state parse_extra {
        packet.extract(hdr.extra);
        transition accept;
    }
}
control NoCheck(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        meta.seen = (bit<16>)standard.instance_type << 12 | (bit<16>)standard.ingress_port;
        hdr.ask.seen = meta.seen;
        hdr.ask.ingresses = hdr.ask.ingresses + 1;
        if (standard.instance_type == 0) {
            meta.kept = hdr.ask.kept;
            meta.also = (bit<72>)hdr.ask.also << 40;
            hdr.ask.lost = meta.lost;
        }
        bit<32> session = (bit<32>)hdr.ask.session;
        if (hdr.ask.op == 1) { clone(CloneType.I2E, session); }
        else if (hdr.ask.op == 2) { clone_preserving_field_list(CloneType.I2E, session, 1); }
        else if (hdr.ask.op == 3) { clone_preserving_field_list(CloneType.I2E, session, 2); mark_to_drop(standard); }
        else if (hdr.ask.op == 4 && standard.instance_type == 0) { resubmit_preserving_field_list(2); }
        else if (hdr.ask.op == 5 && standard.instance_type == 0) {
            standard.mcast_grp = 1;
            clone(CloneType.I2E, session);
            resubmit_preserving_field_list(1);
        }
        else if (hdr.ask.op == 6) { standard.mcast_grp = 1; }
        else if (hdr.ask.op == 7) { truncate(16); }
        else if (hdr.ask.op == 8) { truncate(16); standard.mcast_grp = 1; }
        else if (hdr.ask.op == 9) { truncate(25); truncate(20); truncate(30); }
        else if (hdr.ask.op == 10) { clone(CloneType.I2E, 99); clone_preserving_field_list(CloneType.I2E, session, 1); }
        else if (hdr.ask.op == 11) { standard.priority = 1; }
        else if (hdr.ask.op == 12) { clone(CloneType.I2E, 32768 + session); }
        else if (hdr.ask.op == 13) { hdr.wide.setValid(); hdr.wide.data = 1; }
        else if (hdr.ask.op == 14) { standard.egress_spec = 511; }
        else if (hdr.ask.op == 15) { resubmit_preserving_field_list(1); }  // without end
        else if (hdr.ask.op == 16 && standard.instance_type == 0) {  // a header leaves its fields behind
            hdr.extra.setValid();
            hdr.extra.data = 0xdeadbeef;
            hdr.extra.setInvalid();
            clone(CloneType.I2E, session);
            resubmit_preserving_field_list(1);
        }
        else if (hdr.ask.op == 0x41) { hdr.extra.setInvalid(); clone(CloneType.I2E, session); }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        bit<32> session = (bit<32>)hdr.ask.session;
        hdr.ask.egresses = hdr.ask.egresses + 1;
        hdr.ask.kept = meta.kept;
        hdr.ask.also = meta.also[47:40];
        hdr.ask.lost = meta.lost;
        hdr.ask.type = (bit<8>)standard.instance_type;
        hdr.ask.length = (bit<16>)standard.packet_length;
        hdr.ask.rid = standard.egress_rid;
        hdr.ask.from = standard.ingress_port;
        hdr.ask.to = standard.egress_port;
        if (hdr.ask.op == 0x20 && standard.instance_type == 0) {
            clone_preserving_field_list(CloneType.E2E, session, 2);
        }
        else if (hdr.ask.op == 0x21 && standard.instance_type == 0) {
            clone(CloneType.E2E, session);
            mark_to_drop(standard);
        }
        else if (hdr.ask.op == 6 && standard.instance_type == 5) { clone(CloneType.E2E, session); }
        else if (hdr.ask.op == 0x22 && hdr.ask.ingresses == 1) { recirculate_preserving_field_list(1); }
        else if (hdr.ask.op == 0x23 && standard.instance_type == 0 && hdr.ask.ingresses == 1) {
            truncate(12);
            clone(CloneType.E2E, session);
            recirculate_preserving_field_list(2);
        }
        else if (hdr.ask.op == 0x24) { truncate(14); }
        else if (hdr.ask.op == 0x25 && hdr.ask.ingresses == 1) {
            hdr.wide.setValid();
            hdr.wide.data = 2;
            recirculate_preserving_field_list(2);
        }
        else if (hdr.ask.op == 0x26 && hdr.ask.egresses < 4) { clone(CloneType.E2E, session); }
        else if (hdr.ask.op == 0x27 && hdr.ask.ingresses < 5) {
            hdr.extra.setValid();
            hdr.extra.data = (bit<32>)hdr.ask.ingresses;
            recirculate_preserving_field_list(1);
        }
        else if (hdr.ask.op == 0x28 && hdr.ask.ingresses == 1) {
            recirculate_preserving_field_list(1);
            mark_to_drop(standard);
        }
        else if (hdr.ask.op == 0x29) { recirculate_preserving_field_list(1); }  // without end
        else if (hdr.ask.op == 16) { hdr.wide.setValid(); hdr.wide.data = (bit<72>)hdr.extra.data; }
        else if (hdr.ask.op == 10 && standard.instance_type == INGRESS_CLONE) {
            clone_preserving_field_list(CloneType.E2E, session, 1);
            recirculate_preserving_field_list(1);
            hdr.ask.op = 0x30;
        }
    }
}
control NoUpdate(inout headers_t hdr, inout metadata_t meta) { apply { } }
control CopiesDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(CopiesParser(), NoCheck(), ingress(), egress(), NoUpdate(), CopiesDeparser()) main;
