// The destination of an answer, and its addresses.
//
// Ingress (Answer) multicasts CLOSED to all workers of the job, returns LATE, STALE and FORMAT_MISMATCH to the sender, and
// drops everything else. Egress (Deliver) writes each host's addresses and rank into its copy. If a block has a recipient,
// only that worker gets the sum; the others get the header, whose `members` names the contributors.

control Answer(inout headers_t hdr, in metadata_t meta, inout standard_metadata_t standard_metadata) {
    action drop() { mark_to_drop(standard_metadata); }
    action publish() {
        hdr.kofn.kind = kind_t.RESULT;
        standard_metadata.mcast_grp = meta.group;
    }
    action reply(kind_t kind) {
        hdr.kofn.kind = kind;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }
    table answers {
        key = { meta.verdict: exact; }
        actions = { publish; reply; @defaultonly drop; }
        const default_action = drop();
        const entries = {
            verdict_t.CLOSED: publish();
            verdict_t.LATE: reply(kind_t.LATE);
            verdict_t.STALE: reply(kind_t.STALE);
            verdict_t.FORMAT_MISMATCH: reply(kind_t.FORMAT_MISMATCH);
        }
    }

    apply { answers.apply(); }
}

control Deliver(inout headers_t hdr, inout standard_metadata_t standard_metadata) {
    action drop() { mark_to_drop(standard_metadata); }
    // The answer's source is the address to which the host sent.
    action to_host(bit<48> mac, bit<32> ip, bit<8> worker) {
        hdr.ethernet.src_addr = hdr.ethernet.dst_addr;
        hdr.ethernet.dst_addr = mac;
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
        hdr.ipv4.dst_addr = ip;
        hdr.udp.src_port = KOFN_PORT;
        hdr.udp.checksum = 0;
        hdr.kofn.worker = worker;
    }
    table hosts {
        key = {
            standard_metadata.egress_port: exact;
            hdr.kofn.job: exact;
        }
        actions = { to_host; @defaultonly drop; }
        const default_action = drop();
        size = WORKERS;
    }

    apply {
        hosts.apply();
        if (hdr.kofn.recipient != EVERYONE && hdr.kofn.recipient != hdr.kofn.worker
            && (hdr.kofn.kind == kind_t.RESULT || hdr.kofn.kind == kind_t.LATE)) {
            hdr.kofn.words = 0;
            hdr.udp.length = UDP_AND_KOFN_LENGTH;
            hdr.ipv4.total_length = UDP_AND_KOFN_LENGTH + 20;
            truncate((bit<32>)UDP_AND_KOFN_LENGTH + 34);
        }
    }
}
