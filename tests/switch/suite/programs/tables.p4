// Every kind of table: one is applied to a packet, as its first byte says; what it did is in the header's last bytes.
#include <core.p4>
#include <v1model.p4>

header probe_t {
    bit<8>   table_number;
    bit<8>   a;
    bit<16>  b;
    bit<32>  c;
    bit<128> wide;
    bit<8>   result;   // set by the action that ran
    bit<8>   after;    // set by the branch that was taken after a hit or miss, or after an action
    bit<8>   colour;   // of a meter
}

struct headers {
    probe_t probe;
    probe_t absent;
}

struct metadata {
    bit<2> colour;
    bit<8> in_set;
}

struct pair_t {
    bit<8>  a;
    bit<16> b;
}

const bit<9> OUT = 2;

parser ParserImpl(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    value_set<pair_t>(3) pairs;

    state start {
        packet.extract(hdr.probe);
        transition select(hdr.probe.a, hdr.probe.b) {
            pairs : mark;
            default : accept;
        }
    }

    state mark {
        meta.in_set = 1;
        transition accept;
    }
}

control VerifyChecksumImpl(inout headers hdr, inout metadata meta) {
    apply { }
}

control Tables(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) by_exact_count;
    counter(32, CounterType.packets_and_bytes) counted;
    register<bit<8>>(32) seen;
    action_profile(4) shared;
    @max_group_size(8) action_selector(HashAlgorithm.crc16, 32w32, 32w16) chosen;
    direct_meter<bit<2>>(MeterType.packets) entry_meter;
    meter(16, MeterType.bytes) cell_meter;

    action answer(bit<8> result) {
        hdr.probe.result = result;
    }

    action answer_wide(bit<128> wide, bit<8> result) {
        hdr.probe.wide = wide;
        hdr.probe.result = result;
    }

    action miss() {
        hdr.probe.result = 0xee;
    }

    action leave() {
        exit;
    }

    table by_exact {
        key = { hdr.probe.a : exact; hdr.probe.isValid() : exact; hdr.absent.isValid() : exact; }
        actions = { answer; answer_wide; miss; leave; }
        default_action = miss();
        counters = by_exact_count;
        size = 8;
    }

    table by_lpm {
        key = { hdr.probe.c : lpm; hdr.probe.a : exact; }
        actions = { answer; miss; }
        default_action = miss();
    }

    table by_wide_lpm {
        key = { hdr.probe.wide : lpm; }
        actions = { answer; miss; }
        default_action = miss();
    }

    table by_ternary {
        key = { hdr.probe.c : ternary; hdr.probe.b : lpm; hdr.probe.a : exact; }
        actions = { answer; miss; }
        default_action = miss();
    }

    table by_range {
        key = { hdr.probe.b : range; hdr.probe.a : optional; hdr.probe.wide : ternary; }
        actions = { answer; miss; }
        default_action = miss();
    }

    table constant {
        key = { hdr.probe.c : ternary; hdr.probe.b : range; }
        actions = { answer; miss; }
        const default_action = miss();
        const entries = {
            (0x0a000000 &&& 0xff000000, 0 .. 9) : answer(1);
            (0x0a000000 &&& 0xffff0000, 5 .. 20) : answer(2);
            (_, 20 .. 30) : answer(3);
        }
    }

    table preferred {
        key = { hdr.probe.c : ternary; }
        actions = { answer; miss; }
        const default_action = miss();
        entries = {
            priority = 30 : (0x00000002 &&& 0x00000002) : answer(2);
            priority = 20 : (0x00000003 &&& 0x00000003) : answer(3);
            priority = 10 : (0x00000001 &&& 0x00000001) : answer(1);
        }
    }

    table constant_lpm {
        key = { hdr.probe.c : lpm; }
        actions = { answer; miss; }
        const default_action = miss();
        const entries = {
            0x0a000000 &&& 0xff000000 : answer(8);
            0x0a010000 &&& 0xffff0000 : answer(16);
            0x0a010203 : answer(32);
        }
    }

    table by_part {
        key = { hdr.probe.a & 0xf0 : exact @name("high"); }
        actions = { answer; miss; }
        default_action = miss();
    }

    table keyless {
        actions = { answer; miss; }
        default_action = answer(7);
    }

    table indirect {
        key = { hdr.probe.a : exact; }
        actions = { answer; answer_wide; leave; }
        implementation = shared;
    }

    table indirect_too {
        key = { hdr.probe.c : lpm; }
        actions = { answer; answer_wide; leave; }
        implementation = shared;
    }

    table selected {
        key = { hdr.probe.a : exact; hdr.probe.b : selector; hdr.probe.c : selector; }
        actions = { answer; answer_wide; }
        implementation = chosen;
    }

    action metered_answer(bit<8> result) {
        hdr.probe.result = result;
        entry_meter.read(meta.colour);
    }

    table metered {
        key = { hdr.probe.a : exact; }
        actions = { metered_answer; miss; }
        default_action = miss();
        meters = entry_meter;
    }

    table aged {
        key = { hdr.probe.a : ternary; }
        actions = { answer; miss; }
        default_action = miss();
        support_timeout = true;
    }

    apply {
        standard.egress_spec = OUT;
        counted.count((bit<32>) hdr.probe.table_number);
        seen.write((bit<32>) hdr.probe.table_number, hdr.probe.a);
        if (hdr.probe.table_number == 1) {
            switch (by_exact.apply().action_run) {
                answer: { hdr.probe.after = 1; }
                answer_wide: { hdr.probe.after = 2; }
                default: { hdr.probe.after = 3; }
            }
        } else if (hdr.probe.table_number == 2) {
            by_lpm.apply();
        } else if (hdr.probe.table_number == 3) {
            if (by_wide_lpm.apply().hit) { hdr.probe.after = 1; } else { hdr.probe.after = 2; }
        } else if (hdr.probe.table_number == 4) {
            by_ternary.apply();
        } else if (hdr.probe.table_number == 5) {
            by_range.apply();
        } else if (hdr.probe.table_number == 6) {
            constant.apply();
        } else if (hdr.probe.table_number == 7) {
            preferred.apply();
        } else if (hdr.probe.table_number == 8) {
            constant_lpm.apply();
        } else if (hdr.probe.table_number == 9) {
            by_part.apply();
        } else if (hdr.probe.table_number == 10) {
            keyless.apply();
        } else if (hdr.probe.table_number == 11) {
            switch (indirect.apply().action_run) {
                answer: { hdr.probe.after = 1; }
                answer_wide: { hdr.probe.after = 2; }
            }
        } else if (hdr.probe.table_number == 12) {
            if (indirect_too.apply().hit) { hdr.probe.after = 1; } else { hdr.probe.after = 2; }
        } else if (hdr.probe.table_number == 13) {
            selected.apply();
        } else if (hdr.probe.table_number == 14) {
            metered.apply();
            hdr.probe.colour = (bit<8>) meta.colour;
        } else if (hdr.probe.table_number == 15) {
            cell_meter.execute_meter((bit<32>) hdr.probe.a, meta.colour);
            hdr.probe.colour = (bit<8>) meta.colour;
        } else if (hdr.probe.table_number == 16) {
            aged.apply();
        } else if (hdr.probe.table_number == 17) {
            hdr.probe.result = meta.in_set;
        }
    }
}

control EgressImpl(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply { }
}

control ComputeChecksumImpl(inout headers hdr, inout metadata meta) {
    apply { }
}

control DeparserImpl(packet_out packet, in headers hdr) {
    apply { packet.emit(hdr.probe); }
}

V1Switch(ParserImpl(), VerifyChecksumImpl(), Tables(), EgressImpl(), ComputeChecksumImpl(), DeparserImpl()) main;
