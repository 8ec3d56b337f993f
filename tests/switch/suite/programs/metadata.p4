// standard_metadata: what each field holds in the parser, in ingress and in egress, and what writing it does.
#include <core.p4>
#include <v1model.p4>

header ask_h {
    bit<8> op;
    bit<8> parsed;    // what the parser saw
    bit<32> ingress;  // what ingress saw
    bit<32> egress;   // what egress saw
}
header long_h { bit<32> data; }
header item_h { bit<8> data; }
struct headers_t { ask_h ask; long_h long; item_h item; }
struct metadata_t { bit<8> parsed; bit<48> in_time; }

parser MetaParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        meta.parsed = (bit<8>)standard.packet_length;
        verify(hdr.ask.op != 0xff, error.HeaderTooShort);
        transition select(standard.packet_length, standard.instance_type, standard.ingress_port) {
            (20, 0, 1): parse_long;
            (20, 6, _): parse_item;
            (20, 4, 0): parse_item;
            default: accept;
        }
    }
    state parse_long {
        packet.extract(hdr.long);
        transition accept;
    }
    state parse_item {
        packet.extract(hdr.item);
        hdr.item.data = (bit<8>)standard.instance_type;
        transition accept;
    }
}
control NoCheck(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.ask.parsed = meta.parsed;
        bit<8> op = hdr.ask.op;
        bit<32> seen = 0xdead;
        if (op == 0) { seen = (bit<32>)standard.ingress_port; }
        if (op == 1) { seen = (bit<32>)standard.egress_spec; }
        if (op == 2) { seen = (bit<32>)standard.egress_port; }
        if (op == 3) { seen = standard.instance_type; }
        if (op == 4) { seen = standard.packet_length; }
        if (op == 5) { seen = standard.enq_timestamp; }
        if (op == 6) { seen = (bit<32>)standard.enq_qdepth; }
        if (op == 7) { seen = standard.deq_timedelta; }
        if (op == 8) { seen = (bit<32>)standard.deq_qdepth; }
        if (op == 9) { seen = standard.ingress_global_timestamp == 0 ? 32w0 : 1; }
        if (op == 10) { seen = (bit<32>)standard.egress_global_timestamp; }
        if (op == 11) { seen = (bit<32>)standard.mcast_grp << 16 | (bit<32>)standard.egress_rid; }
        if (op == 12) { seen = (bit<32>)standard.checksum_error; }
        if (op == 13) { seen = standard.parser_error == error.NoError ? 32w0 : 1; }
        if (op == 0xff) { seen = standard.parser_error == error.HeaderTooShort ? 32w7 : 1; }
        if (op == 14) { seen = (bit<32>)standard.priority; }
        hdr.ask.ingress = seen;
        meta.in_time = standard.ingress_global_timestamp;
        standard.egress_spec = 2;
        // On the way to egress some of these fields are reset, the others keep their values.
        if (op == 0x20) { standard.instance_type = 77; }
        if (op == 0x21) { standard.packet_length = 78; }
        if (op == 0x22) { standard.egress_rid = 79; }
        if (op == 0x23) { standard.egress_port = 80; }
        if (op == 0x24) { standard.ingress_port = 81; }
        if (op == 0x25) { standard.enq_qdepth = 82; standard.deq_qdepth = 82; standard.deq_timedelta = 0xffffffff; }
        if (op == 0x26) { standard.ingress_global_timestamp = 83; meta.in_time = 83; }
        if (op == 0x27) { standard.parser_error = error.NoMatch; standard.checksum_error = 1; }
        if (op == 0x28) { hdr.item.setValid(); hdr.item.data = 5; standard.egress_spec = 3; }
        if (op == 0x29) { hdr.long.setInvalid(); }
        if (op == 0x2a) { mark_to_drop(standard); standard.mcast_grp = 1; }
        if (op == 0x2b) { standard.mcast_grp = 2; }
        if (op == 0x2c) { standard.mcast_grp = 1; mark_to_drop(standard); }
        if (op == 0x2d && standard.instance_type == 0) { resubmit_preserving_field_list(0); }
        if (op == 0x2f) { clone(CloneType.I2E, 1); }
        if (op == 0x30) { hdr.ask.op = 0x31; exit; }
        if (op == 0x32) { standard.mcast_grp = 3; }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        bit<8> op = hdr.ask.op;
        bit<32> seen = 0xbeef;
        if (op == 0 || op == 0x24) { seen = (bit<32>)standard.ingress_port; }
        if (op == 1) { seen = (bit<32>)standard.egress_spec; }
        if (op == 2 || op == 0x23) { seen = (bit<32>)standard.egress_port; }
        if (op == 3 || op == 0x20) { seen = standard.instance_type; }
        if (op == 4 || op == 0x21 || op == 0x28 || op == 0x29) { seen = standard.packet_length; }
        if (op == 5) { seen = standard.enq_timestamp >= (bit<32>)meta.in_time ? 32w1 : 0; }
        if (op == 6 || op == 0x25) { seen = (bit<32>)(standard.enq_qdepth + standard.deq_qdepth); }
        if (op == 7) { seen = standard.deq_timedelta < 1000000 ? 32w1 : 0; }
        if (op == 9 || op == 0x26) { seen = standard.ingress_global_timestamp == meta.in_time ? 32w1 : 0; }
        if (op == 10) { seen = standard.egress_global_timestamp >= (bit<48>)standard.enq_timestamp ? 32w1 : 0; }
        if (op == 11 || op == 0x22) { seen = (bit<32>)standard.mcast_grp << 16 | (bit<32>)standard.egress_rid; }
        if (op == 0x27) { seen = standard.parser_error == error.NoMatch ? (bit<32>)standard.checksum_error : 9; }
        if (op == 0x2a || op == 0x2b || op == 0x32) { seen = (bit<32>)standard.mcast_grp << 8 | standard.instance_type; }
        if (op == 0x2f) { seen = (bit<32>)standard.packet_length << 8 | standard.instance_type; }
        if (op == 0x31) { seen = 0x3131; }
        if (op == 0x2d) { seen = standard.ingress_global_timestamp == 0 ? 32w1 : 0; }
        if (op == 0x2e) {
            seen = 0xfeed;
            if (hdr.ask.egress != 0xfeed) { recirculate_preserving_field_list(0); }
        }
        hdr.ask.egress = seen;
        if (op == 0x33) { standard.egress_spec = 5; standard.mcast_grp = 3; }  // too late
        if (op == 0x34) { standard.egress_port = 5; }
        if (op == 0x35) { standard.egress_spec = 511; }
        if (op == 0x32 && standard.egress_rid == 2) { exit; }
        if (op == 0x32) { hdr.ask.parsed = (bit<8>)standard.egress_rid; }
    }
}
control NoUpdate(inout headers_t hdr, inout metadata_t meta) { apply { } }
control MetaDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(MetaParser(), NoCheck(), ingress(), egress(), NoUpdate(), MetaDeparser()) main;
