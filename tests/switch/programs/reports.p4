// Messages for the log and assertions, in every place where they can stand; for tests/switch/test_reports.py.
#include <core.p4>
#include <v1model.p4>

header ask_h {
    bit<8> op;
    bit<8> small;
    int<8> signed;
    bit<72> wide;
    int<100> wide_signed;
    bit<4> pad;
}
struct headers_t { ask_h ask; }
struct metadata_t { }

parser ReportsParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        transition select(hdr.ask.op) {
            0x10: says;
            default: accept;
        }
    }
    state says {
        log_msg("parsed {}", { hdr.ask.small });
        transition accept;
    }
}
control NoCheck(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action told(bit<16> first, bit<72> second) { log_msg("{first} {}", { first, second }); }
    table tells {
        key = { hdr.ask.small: exact; }
        actions = { told; NoAction; }
    }
    apply {
        standard.egress_spec = 1;
        if (hdr.ask.op == 0) { log_msg("plain"); }
        if (hdr.ask.op == 1) { log_msg("{} and {} \\{not this\\} {}", { hdr.ask.small, hdr.ask.signed, hdr.ask.isValid() }); }
        if (hdr.ask.op == 2) { log_msg("wide {} {}.", { hdr.ask.wide, hdr.ask.wide_signed }); }
        if (hdr.ask.op == 3) { tells.apply(); }
        if (hdr.ask.op == 4) { log_msg("sum {}", { hdr.ask.wide + 1 }); }
        if (hdr.ask.op == 0x12) { standard.mcast_grp = 1; }
        assert(hdr.ask.op != 0x51 || hdr.ask.small == 1);
        assume(hdr.ask.op != 0x52);
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.ask.op == 0x11) { log_msg("port {}", { standard.egress_port }); }
        if (hdr.ask.op == 0x12) {
            log_msg("long {} {}", { hdr.ask.wide, standard.egress_port });
            mark_to_drop(standard);
        }
        assert(hdr.ask.op != 0x53);
    }
}
control NoUpdate(inout headers_t hdr, inout metadata_t meta) { apply { } }
control ReportsDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(ReportsParser(), NoCheck(), ingress(), egress(), NoUpdate(), ReportsDeparser()) main;
