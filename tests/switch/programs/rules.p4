// Every kind of table and the rules of the pipeline, for tests/switch/test_rules.py.
// `op` chooses what happens; `value` and `wide` are what it happens to.
#include <core.p4>
#include <v1model.p4>

header request_h {
    bit<8> op;
    bit<32> value;
    bit<32> result;
    bit<128> wide;
}
header extra_h { bit<16> data; }
header item_h { bit<8> last; bit<8> number; }
struct headers_t { request_h request; item_h[3] items; extra_h extra; }
struct metadata_t { bit<16> local; }
struct seen_t { bit<32> value; bit<128> wide; bit<9> port; }

parser RulesParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.request);
        verify(hdr.request.op != 0xff, error.ParserInvalidArgument);
        transition select(hdr.request.op) {
            0x40 &&& 0xf0: parse_item;
            0x50: parse_extra;
            default: accept;
        }
    }
    state parse_item {
        packet.extract(hdr.items.next);
        transition select(hdr.items.last.last) {
            1: accept;
            default: parse_item;
        }
    }
    state parse_extra {
        packet.extract(hdr.extra);
        transition accept;
    }
}
control NoCheck(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<12>>(4) cells;
    register<bit<128>>(2) wides;
    counter(3, CounterType.packets_and_bytes) counts;
    direct_counter(CounterType.packets_and_bytes) hits;

    action result(bit<32> value) { hdr.request.result = value; }
    action wide_result(bit<128> value) { hdr.request.wide = value; }
    action leave() { hdr.request.result = 77; exit; }
    action drop() { mark_to_drop(standard); }
    table by_exact {
        key = { hdr.request.value: exact; hdr.request.wide: exact; }
        actions = { result; wide_result; leave; drop; }
        default_action = result(1);
        counters = hits;
        size = 4;
    }
    table by_action {
        key = { hdr.request.value: exact; }
        actions = { result; wide_result; drop; }
        default_action = result(1);
    }
    table by_lpm {
        key = { hdr.request.value: lpm; }
        actions = { result; drop; }
        const default_action = result(0);
    }
    table by_ternary {
        key = { hdr.request.value: ternary; hdr.request.wide: ternary; }
        actions = { result; drop; }
        default_action = result(0);
    }
    table by_range {
        key = { hdr.request.value: range; hdr.request.op: exact; }
        actions = { result; }
        default_action = result(0);
    }
    table by_optional {
        key = { hdr.request.value: optional; hdr.request.wide: optional; }
        actions = { result; }
        default_action = result(0);
    }
    table constant {
        key = { hdr.request.value: ternary; }
        actions = { result; }
        default_action = result(0);
        const entries = {
            0x10 &&& 0xf0: result(1);
            0x00 &&& 0x0f: result(2);
            _: result(3);
        }
    }
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error != error.NoError) { hdr.request.result = 100; }
        else if (hdr.request.op == 1) { if (by_exact.apply().hit) { hdr.request.op = 0x81; } }
        else if (hdr.request.op == 2) { by_lpm.apply(); }
        else if (hdr.request.op == 3) { by_ternary.apply(); }
        else if (hdr.request.op == 4) { by_range.apply(); }
        else if (hdr.request.op == 5) { by_optional.apply(); }
        else if (hdr.request.op == 6) { constant.apply(); }
        else if (hdr.request.op == 7) {
            switch (by_action.apply().action_run) {
                drop: { standard.egress_spec = 2; }
                wide_result: { standard.egress_spec = 3; }
                default: { standard.egress_spec = 4; }
            }
        }
        else if (hdr.request.op == 0x10) { cells.write(hdr.request.value, (bit<12>)hdr.request.wide); }
        else if (hdr.request.op == 0x11) {
            bit<12> cell;
            cells.read(cell, hdr.request.value);
            hdr.request.result = (bit<32>)cell;
        }
        else if (hdr.request.op == 0x12) { wides.write(hdr.request.value, hdr.request.wide); }
        else if (hdr.request.op == 0x13) { wides.read(hdr.request.wide, hdr.request.value); }
        else if (hdr.request.op == 0x14) { counts.count(hdr.request.value); }
        else if (hdr.request.op == 0x15) { digest<seen_t>(1, { hdr.request.value, hdr.request.wide, standard.ingress_port }); }
        else if (hdr.request.op == 0x20) { standard.mcast_grp = (bit<16>)hdr.request.value; }
        else if (hdr.request.op == 0x21) { standard.mcast_grp = 1; mark_to_drop(standard); }
        else if (hdr.request.op == 0x22) { mark_to_drop(standard); standard.egress_spec = 5; }
        else if (hdr.request.op == 0x23) { standard.egress_spec = (bit<9>)hdr.request.value; }
        else if (hdr.request.op == 0x24) { hdr.extra.setValid(); standard.egress_spec = 6; }
        else if (hdr.request.op == 0x25) { hdr.request.result = (bit<32>)hdr.extra.data; }
        else if (hdr.request.op == 0x26) { hash(hdr.request.result, HashAlgorithm.crc32, 32w0, { hdr.request.value }, 64w0x100000000); }
        else if (hdr.request.op == 0x27) { hash(hdr.request.result, HashAlgorithm.crc16, 32w5, { hdr.request.value }, 32w100); }
        else if (hdr.request.op == 0x28) { random(hdr.request.result, 32w10, 32w12); }
        else if (hdr.request.op == 0x29) { truncate(hdr.request.value); }
        else if (hdr.request.op == 0x2a) { assert(hdr.request.value == 1); }
        else if (hdr.request.op == 0x41) { hdr.items.pop_front(1); }
        else if (hdr.request.op == 0x42) { hdr.items.push_front(1); hdr.items[0].setValid(); hdr.items[0].number = 9; }
        else if (hdr.request.op == 0x43) { hdr.request.result = (bit<32>)hdr.items[hdr.request.value].number; }
        else if (hdr.request.op == 0x50) { hdr.extra.setInvalid(); }
        else if (hdr.request.op == 0x60) {
            if (hdr.request.value != 0) { meta.local = 5; }
            hdr.request.result = (bit<32>)meta.local;
        }
        hdr.request.value = hdr.request.value + 1;
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.request.op == 0x20) {
            hdr.request.result = standard.instance_type;
            hdr.request.result = hdr.request.result << 16 | (bit<32>)standard.egress_rid;
            hdr.request.wide = hdr.request.wide + 1;
            if (standard.egress_port == standard.ingress_port) { mark_to_drop(standard); }
        }
        if (hdr.request.op == 0x24) { hdr.request.result = standard.packet_length; }
    }
}
control NoUpdate(inout headers_t hdr, inout metadata_t meta) { apply { } }
control RulesDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(RulesParser(), NoCheck(), ingress(), egress(), NoUpdate(), RulesDeparser()) main;
