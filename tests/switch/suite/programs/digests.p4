// Digests: what they hold, which of several is sent, and beside what else that happens to the packet.
#include <core.p4>
#include <v1model.p4>

header ask_h {
    bit<8> op;
    bit<8> small;
    bit<16> number;
    bit<72> wide;
    bit<8> last;
}
header extra_h { bit<8> data; }
struct headers_t { ask_h ask; extra_h extra; }
struct seen_t { bit<8> op; bit<16> number; bit<9> port; bit<72> wide; }
struct other_t { bit<8> last; bit<8> extra; bit<1> flag; }
struct metadata_t { @field_list(1) bit<16> number; bit<1> flag; }

parser DigestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        packet.extract(hdr.extra);
        transition accept;
    }
}
control NoCheck(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action seen() { digest<seen_t>(1, { hdr.ask.op, meta.number, standard.ingress_port, hdr.ask.wide }); }
    action other() { digest<other_t>(2, { hdr.ask.last, hdr.extra.data, meta.flag }); }
    apply {
        standard.egress_spec = 2;
        if (standard.instance_type == 0) { meta.number = hdr.ask.number; }
        meta.flag = (bit<1>)hdr.ask.isValid();
        if (hdr.ask.op & 1 != 0) { seen(); }
        if (hdr.ask.op & 2 != 0) { other(); }
        if (hdr.ask.op & 4 != 0) { mark_to_drop(standard); }
        if (hdr.ask.op & 8 != 0) { clone(CloneType.I2E, 5); }
        if (hdr.ask.op & 16 != 0 && standard.instance_type == 0) { resubmit_preserving_field_list(1); }
        if (hdr.ask.op & 32 != 0) { standard.mcast_grp = 1; }
        if (hdr.ask.op & 64 != 0) { hdr.ask.wide = 7; hdr.ask.last = 8; hdr.extra.data = 7; }
    }
}
control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { apply { } }
control NoUpdate(inout headers_t hdr, inout metadata_t meta) { apply { } }
control DigestDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(DigestParser(), NoCheck(), ingress(), egress(), NoUpdate(), DigestDeparser()) main;
