// Everything that a control plane can touch, one of each: what tests/switch/p4runtime drives.
//
// A frame is Ethernet with ether type 0x9000 and a test header.  Frames from the CPU port start with packet_out_h and
// leave by the port it names.  All others pass the tables; `kind` then decides:
//   1  to the CPU port, behind packet_in_h
//   2  to the multicast group in `value`
//   3  a digest of (value, port), and drop
//   4  cells[value] = length; counted in `seen`; and drop
//   else to where table `exacts` sends it
#include <core.p4>
#include <v1model.p4>

typedef bit<9> port_t;
const bit<16> TEST_TYPE = 0x9000;
const port_t CPU = 255;

@controller_header("packet_in")
header packet_in_h {
    port_t ingress_port;
    bit<7> reason;
    bit<16> length;
}

@controller_header("packet_out")
header packet_out_h {
    port_t egress_port;
    bit<7> pad;
}

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header test_h {
    bit<8> kind;
    bit<8> narrow;
    bit<32> value;
}

struct headers_t {
    packet_in_h packet_in;
    packet_out_h packet_out;
    ethernet_h ethernet;
    test_h test;
}

struct meta_t {
    bit<12> tag;
}

struct sighting_t {
    bit<32> value;
    bit<9> port;
}

parser TestParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TEST_TYPE: parse_test;
            default: accept;
        }
    }
    state parse_test {
        packet.extract(hdr.test);
        transition accept;
    }
}

control NoCheck(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control TestIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    counter(8, CounterType.packets_and_bytes) seen;
    register<bit<32>>(16) cells;
    direct_counter(CounterType.packets_and_bytes) hits;

    action drop() { mark_to_drop(standard); }
    action send(port_t port) { standard.egress_spec = port; }
    action tag(bit<12> value) { meta.tag = value; }
    action wide(bit<2048> value) { meta.tag = value[11:0]; }

    table exacts {
        key = { hdr.test.narrow: exact; }
        actions = { send; drop; @tableonly tag; @defaultonly NoAction; wide; }
        default_action = drop();
        counters = hits;
        size = 4;
    }
    table prefixes {
        key = { hdr.test.value: lpm; }
        actions = { tag; NoAction; }
        default_action = NoAction();
    }
    table patterns {
        key = {
            hdr.test.value: ternary;
            hdr.test.narrow: range;
            standard.ingress_port: optional;
        }
        actions = { tag; NoAction; }
        const default_action = NoAction();
    }
    table fixed {
        key = { hdr.test.kind: exact; }
        actions = { tag; NoAction; }
        const entries = {
            7: tag(7);
            8: tag(8);
        }
    }
    table keyless {
        actions = { tag; NoAction; }
        default_action = NoAction();
    }

    apply {
        if (hdr.packet_out.isValid()) {
            standard.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else if (hdr.test.isValid()) {
            exacts.apply();
            prefixes.apply();
            patterns.apply();
            fixed.apply();
            keyless.apply();
            if (hdr.test.kind == 1) {
                hdr.packet_in.setValid();
                hdr.packet_in.ingress_port = standard.ingress_port;
                hdr.packet_in.reason = 5;
                hdr.packet_in.length = (bit<16>)standard.packet_length;
                standard.egress_spec = CPU;
            } else if (hdr.test.kind == 2) {
                standard.mcast_grp = hdr.test.value[15:0];
            } else if (hdr.test.kind == 3) {
                digest<sighting_t>(1, { hdr.test.value, standard.ingress_port });
                drop();
            } else if (hdr.test.kind == 4) {
                cells.write(hdr.test.value, standard.packet_length);
                seen.count(hdr.test.value);
                drop();
            } else if (hdr.test.kind == 5) {
                clone(CloneType.I2E, hdr.test.value);
                log_msg("cloned to session {}", { hdr.test.value });
                drop();
            }
        } else {
            drop();
        }
    }
}

control TestEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply {}
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(TestParser(), NoCheck(), TestIngress(), TestEgress(), NoCheck(), TestDeparser()) main;
