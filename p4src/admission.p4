// Every check and look-up that can refuse a kofn packet.
//
//   sound? (version, kind, lengths, checksums, part)  ->  job known?  ->  this worker on this port?
//   ->  of this generation?  ->  lanes, recipient known?
//
// Sets meta.verdict to ADMITTED or to the reason of the refusal. Later stages refuse no packet for its fields alone.

control Admission(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action deny_job() { meta.verdict = verdict_t.UNKNOWN_JOB; }
    // `base`: the job's first slot; `mask`: its number of slots - 1. So a job cannot address another job's slots.
    // `generation`: packets of an earlier one are refused. It grows when slots are lost or reassigned.
    // `room`: the contributions that fit into a lane; hosts scale their values for it.
    // `racks`: of the job's tree, at its root; 0: one switch.
    action set_job(bit<16> k, bit<16> group, bit<32> base, bit<32> mask, bit<32> generation, bit<16> room, bit<8> racks) {
        meta.k = k;
        meta.room = room;
        meta.group = group;
        meta.slot = base + ((bit<32>)hdr.kofn.slot & mask);
        meta.buffer = meta.slot;
        meta.turn = mask + 1;
        meta.generation = generation;
        meta.racks = racks;
    }
    // `everyone`: part 0 of the rack's workers. `shift`: the open buffer is due when it has at least (contributions that the
    // root still misses) >> shift; with shift 0 it is due when the rack is complete. `base`: the job's first buffer; a slot
    // has two.
    action set_leaf(bit<16> k, bit<16> group, bit<32> base, bit<32> mask, bit<32> generation, bit<8> racks, bit<8> rack,
            bit<9> uplink, bit<256> everyone, bit<8> shift) {
        set_job(k, group, base + ((bit<32>)hdr.kofn.slot & mask), mask, generation, 0, racks);
        meta.leaf = true;
        meta.rack = rack;
        meta.onward = uplink;
        meta.everyone = everyone;
        meta.shift = shift;
    }
    table jobs {
        key = { hdr.kofn.job: exact; }
        actions = { set_job; set_leaf; @defaultonly deny_job; }
        const default_action = deny_job();
        size = JOBS;
    }

    action deny_port() { meta.verdict = verdict_t.WRONG_PORT; }
    action admit_host() { meta.most = 1; }
    // `most`: contributions that a leaf's packet may carry.
    action admit_leaf(bit<8> rack, bit<16> most) {
        meta.most = most;
        meta.rack = rack;
        meta.from_leaf = true;
    }
    action admit_root() { meta.from_root = true; }
    table members {
        key = {
            standard_metadata.ingress_port: exact;
            hdr.kofn.job: exact;
            hdr.kofn.worker: exact;
        }
        actions = { admit_host; admit_leaf; admit_root; @defaultonly deny_port; }
        const default_action = deny_port();
        size = WORKERS;
    }

    action deny_lanes() { meta.verdict = verdict_t.UNKNOWN_LANES; }
    action set_lanes(word_t high) { meta.high = high; }
    table lanes {
        key = { hdr.kofn.lanes: exact; }
        actions = { set_lanes; @defaultonly deny_lanes; }
        const default_action = deny_lanes();
        size = 16;
    }

    action deny_recipient() { meta.verdict = verdict_t.UNKNOWN_RECIPIENT; }
    action accept_recipient() {}
    table recipients {
        key = {
            hdr.kofn.job: exact;
            hdr.kofn.recipient: exact;
        }
        actions = { accept_recipient; @defaultonly deny_recipient; }
        const default_action = deny_recipient();
        size = WORKERS;
    }

    apply {
        bit<16> length = UDP_AND_KOFN_LENGTH + ((bit<16>)hdr.kofn.bitmaps << 5) + ((bit<16>)hdr.kofn.words << 8);
        bool asks = hdr.kofn.kind == kind_t.CONTRIBUTE || hdr.kofn.kind == kind_t.PULL;
        meta.verdict = verdict_t.ADMITTED;
        if (!hdr.kofn.isValid()) { meta.verdict = verdict_t.TRUNCATED; }
        else if (hdr.kofn.version != KOFN_VERSION) { meta.verdict = verdict_t.BAD_VERSION; }
        else if ((bit<4>)hdr.kofn.kind > 6) { meta.verdict = verdict_t.BAD_KIND; }
        else if ((asks && (hdr.kofn.words == 0 || hdr.kofn.bitmaps != 0))
                 || hdr.kofn.words > WORDS_MAX || hdr.kofn.bitmaps > RACKS_MAX || hdr.udp.length != length
                 || hdr.ipv4.total_length != hdr.udp.length + 20) { meta.verdict = verdict_t.BAD_LENGTH; }
        else if (standard_metadata.parser_error != error.NoError) { meta.verdict = verdict_t.TRUNCATED; }
        else if (standard_metadata.checksum_error == 1) { meta.verdict = verdict_t.BAD_CHECKSUM; }
        else if (hdr.kofn.iteration == 0) { meta.verdict = verdict_t.BAD_ITERATION; }  // an empty slot's block_id has iteration 0
        else if (hdr.kofn.part >= PARTS) { meta.verdict = verdict_t.BAD_PART; }

        if (meta.verdict == verdict_t.ADMITTED) { jobs.apply(); }
        if (meta.verdict == verdict_t.ADMITTED && members.apply().hit && asks == meta.from_root) {
            meta.verdict = verdict_t.BAD_KIND;
        }
        if (meta.verdict == verdict_t.ADMITTED && asks) {
            bool pulls = hdr.kofn.kind == kind_t.PULL;
            meta.counted = !pulls && hdr.kofn.count != 0 && !meta.from_leaf;
            // A contribution that does not count towards k is still one addend.
            meta.addends = hdr.kofn.count == 0 ? 16w1 : hdr.kofn.count;
            // Only owned blocks, which are those of exact sums, close with fewer contributions than the job's k.
            bool low_k = hdr.kofn.k != 0 && hdr.kofn.k < meta.k && hdr.kofn.job <= JOB_MAX;
            bool good_weight = hdr.kofn.weight != 0 && hdr.kofn.weight <= (bit<32>)meta.most * WEIGHT_MAX;
            if (low_k || hdr.kofn.count > meta.most || (pulls && hdr.kofn.count == 0) || (!pulls && !good_weight)) {
                meta.verdict = verdict_t.BAD_COUNT;
            }
        }
        if (meta.verdict == verdict_t.ADMITTED && hdr.kofn.generation != meta.generation) {
            meta.verdict = verdict_t.OLD_GENERATION;
        }
        if (meta.verdict == verdict_t.ADMITTED) { lanes.apply(); }
        if (meta.verdict == verdict_t.ADMITTED && asks && hdr.kofn.recipient != EVERYONE) { recipients.apply(); }
        meta.refused = meta.verdict != verdict_t.ADMITTED;
    }
}
