// Traffic that is not kofn: a plain Ethernet switch for ARP and IPv4, so that hosts can ping each other and agree on calls.
//
// A host sends IPv4 from its own address only, so no host can speak for the switch or for another worker. All other frames are
// dropped, because a host's kernel may find IPv4 inside them that this program does not see (VLAN tags, for example). A sender of
// IPv6 is not blamed: kernels send IPv6 on their own.

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action drop() { mark_to_drop(standard_metadata); }
    table sources {
        key = {
            standard_metadata.ingress_port: exact;
            hdr.ipv4.src_addr: exact;
        }
        actions = { NoAction; }
        const default_action = NoAction();
        size = SOURCES;
    }
    action to_port(bit<9> port) { standard_metadata.egress_spec = port; }
    action flood(bit<16> group) { standard_metadata.mcast_grp = group; }
    table l2 {
        key = { hdr.ethernet.dst_addr: exact; }
        actions = { to_port; flood; drop; }
        default_action = drop();
        size = 1024;
    }

    apply {
        bool own = hdr.ethernet.ether_type == ETHERTYPE_ARP;
        if (hdr.ipv4.isValid()) { own = sources.apply().hit; }
        if (own) {
            l2.apply();
        } else {
            drop();
            meta.verdict = verdict_t.WRONG_SOURCE;
            meta.refused = hdr.ethernet.ether_type != ETHERTYPE_IPV6;
        }
    }
}

// A flooded frame does not return to its ingress port.
control Prune(inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.egress_port == standard_metadata.ingress_port) { mark_to_drop(standard_metadata); }
    }
}
