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
    action ask(kind_t kind) {
        hdr.kofn.kind = kind;
        standard_metadata.egress_spec = meta.onward;
    }
    action tell_all() {
        hdr.kofn.kind = kind_t.ADDED;
        standard_metadata.mcast_grp = meta.group;
    }
    table answers {
        key = {
            meta.verdict: exact;
            meta.tell: exact;
        }
        actions = { publish; reply; ask; tell_all; @defaultonly drop; }
        const default_action = drop();
        const entries = {
            (verdict_t.CLOSED, TELL_NONE): publish();
            (verdict_t.LATE, TELL_NONE): reply(kind_t.LATE);
            (verdict_t.STALE, TELL_NONE): reply(kind_t.STALE);
            (verdict_t.FORMAT_MISMATCH, TELL_NONE): reply(kind_t.FORMAT_MISMATCH);
            (verdict_t.ASKED, TELL_NONE): ask(kind_t.PULL);
            (verdict_t.SENT, TELL_NONE): ask(kind_t.CONTRIBUTE);
            (verdict_t.PASSED, TELL_NONE): ask(kind_t.CONTRIBUTE);
            (verdict_t.HEARD, TELL_WORKER): ask(kind_t.ADDED);
            (verdict_t.OPENED, TELL_LEAF): reply(kind_t.ADDED);
            (verdict_t.ADDED, TELL_LEAF): reply(kind_t.ADDED);
            (verdict_t.DUPLICATE, TELL_LEAF): reply(kind_t.ADDED);
            (verdict_t.OVERLAP, TELL_LEAF): reply(kind_t.ADDED);
            (verdict_t.OPENED, TELL_ALL): tell_all();
            (verdict_t.ADDED, TELL_ALL): tell_all();
            (verdict_t.DUPLICATE, TELL_ALL): tell_all();
            (verdict_t.OVERLAP, TELL_ALL): tell_all();
        }
    }

    apply { answers.apply(); }
}

control Deliver(inout headers_t hdr, in metadata_t meta, inout standard_metadata_t standard_metadata) {
    bit<16> mine = EVERYONE;  // this copy's recipient
    action drop() { mark_to_drop(standard_metadata); }
    // The answer's source is the address to which the host sent.
    action to_host(bit<48> mac, bit<32> ip, bit<8> rack, bit<8> worker) {
        hdr.ethernet.src_addr = hdr.ethernet.dst_addr;
        hdr.ethernet.dst_addr = mac;
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
        hdr.ipv4.dst_addr = ip;
        hdr.udp.src_port = KOFN_PORT;
        hdr.udp.checksum = 0;
        hdr.kofn.worker = worker;
        hdr.kofn.rack = rack;
        mine = rack ++ worker;
    }
    // A leaf or the root. All workers of a rack are behind its leaf.
    action to_switch(bit<48> mac, bit<32> ip, bit<8> rack) {
        to_host(mac, ip, rack, rack);
        mine = rack ++ hdr.kofn.recipient[7:0];
    }
    table hosts {
        key = {
            standard_metadata.egress_port: exact;
            hdr.kofn.job: exact;
        }
        actions = { to_host; to_switch; @defaultonly drop; }
        const default_action = drop();
        size = WORKERS;
    }

    apply {
        hosts.apply();
        if (hdr.kofn.kind == kind_t.ADDED || hdr.kofn.words == 0 || (hdr.kofn.recipient != EVERYONE && hdr.kofn.recipient != mine
            && (hdr.kofn.kind == kind_t.RESULT || hdr.kofn.kind == kind_t.LATE))) {
            hdr.kofn.words = 0;
            hdr.udp.length = UDP_AND_KOFN_LENGTH + ((bit<16>)hdr.kofn.bitmaps << 5);
            hdr.ipv4.total_length = hdr.udp.length + 20;
            truncate((bit<32>)hdr.udp.length + 34);
        }
        // `members` of ADDED are the sender's rack's.
        if (hdr.kofn.kind == kind_t.ADDED && hdr.kofn.rack != meta.rack) { hdr.kofn.members = 0; }
    }
}
