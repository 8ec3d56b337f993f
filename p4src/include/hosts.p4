// What a protocol between hosts and a switch needs beside its own rules: Ethernet, IPv4 and UDP, plain forwarding of all
// other traffic, and the addresses of answers. controller/kofn_controller/p4runtime/builders.py has the entries:
// forwarding(), addressing().

#include <core.p4>
#include <v1model.p4>

header ethernet_h {
    bit<48> dst_addr;
    bit<48> src_addr;
    bit<16> ether_type;
}

header ipv4_h {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// 64 lanes of 32 bits.
typedef bit<2048> word_t;
const word_t TOP_BITS = 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000
    ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000
    ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000
    ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000
    ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000
    ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000
    ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000
    ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000 ++ 64w0x8000000080000000;

// The lanes' sums modulo 2**32, all in one expression: no carry leaves a lane without its top bit.
#define ADD_LANES(a, b) ((((a) & ~TOP_BITS) + ((b) & ~TOP_BITS)) ^ (((a) ^ (b)) & TOP_BITS))

// For the control that computes checksums. UDP's is 0, "not computed".
#define IPV4_CHECKSUM(ipv4) update_checksum(ipv4.isValid(), { ipv4.version, ipv4.ihl, ipv4.dscp, ipv4.ecn, ipv4.total_length, \
    ipv4.identification, ipv4.flags, ipv4.fragment_offset, ipv4.ttl, ipv4.protocol, ipv4.src_addr, ipv4.dst_addr }, \
    ipv4.checksum, HashAlgorithm.csum16)

// Parses up to UDP; fragments, IP options and other protocols leave `udp` invalid.
parser HostParser(packet_in packet, out ethernet_h ethernet, out ipv4_h ipv4, out udp_h udp) {
    state start {
        packet.extract(ethernet);
        transition select(ethernet.ether_type) { 0x0800: parse_ipv4; default: accept; }
    }
    state parse_ipv4 {
        packet.extract(ipv4);
        transition select(ipv4.ihl, ipv4.flags, ipv4.fragment_offset, ipv4.protocol) {
            (5, 0 .. 3, 0, 17): parse_udp;
            default: accept;
        }
    }
    state parse_udp {
        packet.extract(udp);
        transition accept;
    }
}

// For ingress: a plain Ethernet switch for ARP and IPv4. A host sends IPv4 from its own address only, and no other frames, inside
// which a kernel may find IPv4 that this program does not see.
control Forward(in ethernet_h ethernet, in ipv4_h ipv4, inout standard_metadata_t standard_metadata) {
    action drop() { mark_to_drop(standard_metadata); }
    table sources {
        key = {
            standard_metadata.ingress_port: exact @name("standard_metadata.ingress_port");
            ipv4.src_addr: exact @name("hdr.ipv4.src_addr");
        }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 1024;
    }
    action to_port(bit<9> port) { standard_metadata.egress_spec = port; }
    action flood(bit<16> group) { standard_metadata.mcast_grp = group; }
    table l2 {
        key = { ethernet.dst_addr: exact @name("hdr.ethernet.dst_addr"); }
        actions = { to_port; flood; drop; }
        default_action = drop();
        size = 1024;
    }

    apply {
        bool own = ethernet.ether_type == 0x0806;
        if (ipv4.isValid()) { own = sources.apply().hit; }
        if (own) { l2.apply(); } else { drop(); }
    }
}

// For egress: an answer's source is the address to which the host had sent, its destination the host behind the port.
control Address(inout ethernet_h ethernet, inout ipv4_h ipv4, inout udp_h udp, in standard_metadata_t standard_metadata) {
    action to_host(bit<48> mac, bit<32> ip) {
        ethernet.src_addr = ethernet.dst_addr;
        ethernet.dst_addr = mac;
        ipv4.src_addr = ipv4.dst_addr;
        ipv4.dst_addr = ip;
        udp.src_port = udp.dst_port;
        udp.checksum = 0;
    }
    table hosts {
        key = { standard_metadata.egress_port: exact @name("standard_metadata.egress_port"); }
        actions = { to_host; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 512;
    }

    apply { hosts.apply(); }
}

// For egress: a flooded frame does not return to its ingress port.
control Prune(inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.egress_port == standard_metadata.ingress_port) { mark_to_drop(standard_metadata); }
    }
}
