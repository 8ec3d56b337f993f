// Control flow: exit and return in controls and actions, loops, tables of no size and without keys, hit, miss and
// action_run, and statements of the deparser.

#include <core.p4>
#include <v1model.p4>

header Test_h {
    bit<8> number;   // which of the cases below
    bit<8> value;
    bit<16> path;    // the places passed, a bit each
    bit<16> result;
}

struct headers_t {
    Test_h test;
}

struct metadata_t {
    bit<16> sum;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.test);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Returning(inout headers_t hdr) {
    apply {
        hdr.test.path = hdr.test.path | 0x10;
        if (hdr.test.value == 1) { return; }
        hdr.test.path = hdr.test.path | 0x20;
        if (hdr.test.value == 2) { exit; }
        hdr.test.path = hdr.test.path | 0x40;
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Returning() returning;

    action pass(bit<16> result) { hdr.test.result = result; }
    action leave() { exit; }
    action stop(bit<16> result) {
        hdr.test.result = result;
        if (hdr.test.value == 1) { exit; }
        hdr.test.result = result + 1;
        if (hdr.test.value == 2) { return; }
        hdr.test.result = result + 2;
    }
    action add_up() {
        bit<16> sum = 0;
        bit<8> turns = hdr.test.value & 7;
        for (bit<8> i = 1; i <= turns; i = i + 1) {
            for (bit<8> j = 0; j < i; j = j + 1) { sum = sum + (bit<16>)j; }
        }
        hdr.test.result = sum;
    }
    table of_no_size {
        key = { hdr.test.value: exact; }
        actions = { pass; leave; NoAction; }
        default_action = pass(0x77);
        size = 0;
    }
    table without_key {
        actions = { stop; }
        default_action = stop(0x10);
    }
    table with_entries {
        key = { hdr.test.value: exact; }
        actions = { pass; leave; stop; NoAction; }
        const entries = {
            1: pass(0x100);
            2: leave();
            3: stop(0x300);
            4: NoAction();
        }
        const default_action = pass(0x500);
    }
    table by_action {
        key = { hdr.test.value: exact; }
        actions = { pass; leave; stop; NoAction; }
        const entries = {
            1: pass(0x100);
            2: leave();
            3: stop(0x300);
        }
    }
    table empty {
        actions = {}
    }

    apply {
        standard.egress_spec = 1;
        hdr.test.path = 1;
        if (hdr.test.number == 1) {
            returning.apply(hdr);
            hdr.test.path = hdr.test.path | 2;
        } else if (hdr.test.number == 2) {
            of_no_size.apply();
        } else if (hdr.test.number == 3) {
            without_key.apply();
            hdr.test.path = hdr.test.path | 2;
        } else if (hdr.test.number == 4) {
            if (with_entries.apply().hit) { hdr.test.path = hdr.test.path | 2; }
            else { hdr.test.path = hdr.test.path | 4; }
        } else if (hdr.test.number == 5) {
            switch (by_action.apply().action_run) {
                pass: { hdr.test.path = hdr.test.path | 2; }
                stop: { hdr.test.path = hdr.test.path | 4; }
                default: { hdr.test.path = hdr.test.path | 8; }
            }
        } else if (hdr.test.number == 6) {
            add_up();
        } else if (hdr.test.number == 7) {
            empty.apply();
            switch (hdr.test.value) {
                1: { hdr.test.path = hdr.test.path | 2; }
                2:
                3: { hdr.test.path = hdr.test.path | 4; }
                default: { hdr.test.path = hdr.test.path | 8; }
            }
        } else if (hdr.test.number == 8) {
            meta.sum = hdr.test.value == 1 ? 16w5 : (hdr.test.value == 2 ? 16w6 : 16w7);
            hdr.test.result = meta.sum;
            if (hdr.test.value == 9) { return; }
            hdr.test.path = hdr.test.path | 2;
        }
        hdr.test.path = hdr.test.path | 0x100;
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.test.path = hdr.test.path | 0x1000;
        if (hdr.test.value == 7) { exit; }
        hdr.test.path = hdr.test.path | 0x2000;
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        log_msg("number {}", { hdr.test.number });
        assert(hdr.test.number != 10 || hdr.test.path == 0);
        packet.emit(hdr.test);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
