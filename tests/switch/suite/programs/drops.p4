// mark_to_drop() on standard_metadata itself and on copies of it: only the header that it is given changes.
#include <core.p4>
#include <v1model.p4>

header ask_h {
    bit<8> op;
    bit<16> port;
    bit<16> group;
}
struct headers_t { ask_h ask; }
struct metadata_t { }

parser DropParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        transition accept;
    }
}
control NoCheck(inout headers_t hdr, inout metadata_t meta) { apply { } }
control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop_given(inout standard_metadata_t given) { mark_to_drop(given); }
    action drop_copy_and_exit(inout standard_metadata_t given) { mark_to_drop(given); exit; }
    action drop_or_send(inout standard_metadata_t given) { mark_to_drop(given); given.egress_spec = 2; }
    apply {
        standard.egress_spec = 1;
        if (hdr.ask.op == 0x10) { mark_to_drop(standard); }
        else if (hdr.ask.op == 0x11) { drop_given(standard); }
        else if (hdr.ask.op == 0x12) { drop_copy_and_exit(standard); }
        else if (hdr.ask.op == 0x13) { drop_or_send(standard); }
        else if (hdr.ask.op == 0x14) {
            standard_metadata_t copy = standard;
            mark_to_drop(copy);
            hdr.ask.port = (bit<16>)copy.egress_spec;
        }
        else if (hdr.ask.op == 0x15) {
            standard_metadata_t copy = standard;
            copy.mcast_grp = 9;
            mark_to_drop(copy);
            hdr.ask.group = 0x100 + copy.mcast_grp;
        }
        else if (hdr.ask.op == 0x16) {
            standard.mcast_grp = 1;
            drop_given(standard);
        }
        else if (hdr.ask.op == 0x17) {
            standard_metadata_t copy = standard;
            standard.egress_spec = 3;
            mark_to_drop(copy);
            standard = copy;
        }
    }
}
control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop_given(inout standard_metadata_t given) { mark_to_drop(given); }
    apply {
        if (hdr.ask.op == 0x20) { drop_given(standard); }
        else if (hdr.ask.op == 0x21) {
            standard_metadata_t copy = standard;
            mark_to_drop(copy);
            hdr.ask.port = (bit<16>)copy.egress_spec;
        }
    }
}
control NoUpdate(inout headers_t hdr, inout metadata_t meta) { apply { } }
control DropDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(DropParser(), NoCheck(), ingress(), egress(), NoUpdate(), DropDeparser()) main;
