// Large tables of each kind, for bench/entries.py.
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> kind;  // which table
}

header address_t {
    bit<32> source;
    bit<32> destination;
}

struct headers {
    ethernet_t ethernet;
    address_t address;
}

struct metadata { }

parser ParserImpl(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.address);
        transition accept;
    }
}

control VerifyChecksumImpl(inout headers hdr, inout metadata meta) { apply { } }

control Entries(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    action send(bit<9> port) { standard.egress_spec = port; }
    action drop() { mark_to_drop(standard); }

    table stations {
        key = { hdr.ethernet.destination : exact; }
        actions = { send; drop; }
        default_action = drop();
        size = 131072;
    }

    table routes {
        key = { hdr.address.destination : lpm; }
        actions = { send; drop; }
        default_action = drop();
        size = 131072;
    }

    table rules {
        key = { hdr.address.source : ternary; hdr.address.destination : ternary; }
        actions = { send; drop; }
        default_action = drop();
        size = 131072;
    }

    apply {
        if (hdr.ethernet.kind == 1) {
            stations.apply();
        } else if (hdr.ethernet.kind == 2) {
            routes.apply();
        } else {
            rules.apply();
        }
    }
}

control EgressImpl(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }

control ComputeChecksumImpl(inout headers hdr, inout metadata meta) { apply { } }

control DeparserImpl(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.address);
    }
}

V1Switch(ParserImpl(), VerifyChecksumImpl(), Entries(), EgressImpl(), ComputeChecksumImpl(), DeparserImpl()) main;
