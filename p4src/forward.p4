// Traffic that is not kofn: a plain Ethernet switch, so that hosts can ping each other.

control Forward(inout headers_t hdr, inout standard_metadata_t standard_metadata) {
    action drop() { mark_to_drop(standard_metadata); }
    action to_port(bit<9> port) { standard_metadata.egress_spec = port; }
    action flood(bit<16> group) { standard_metadata.mcast_grp = group; }
    table l2 {
        key = { hdr.ethernet.dst_addr: exact; }
        actions = { to_port; flood; drop; }
        default_action = drop();
        size = 1024;
    }

    apply { l2.apply(); }
}

// A flooded frame does not return to its ingress port.
control Prune(inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.egress_port == standard_metadata.ingress_port) { mark_to_drop(standard_metadata); }
    }
}
