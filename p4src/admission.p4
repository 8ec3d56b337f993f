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
    action set_job(bit<16> k, bit<16> group, bit<32> base, bit<32> mask, bit<32> generation, bit<16> room) {
        meta.k = k;
        meta.room = room;
        meta.group = group;
        meta.slot = base + ((bit<32>)hdr.kofn.slot & mask);
        meta.generation = generation;
    }
    table jobs {
        key = { hdr.kofn.job: exact; }
        actions = { set_job; @defaultonly deny_job; }
        const default_action = deny_job();
        size = 256;
    }

    action deny_port() { meta.verdict = verdict_t.WRONG_PORT; }
    // `most`: workers whose contributions one packet may carry: 1 for a host, the rack's size for a leaf switch.
    action admit(bit<16> most) { meta.most = most; }
    table members {
        key = {
            standard_metadata.ingress_port: exact;
            hdr.kofn.job: exact;
            hdr.kofn.worker: exact;
        }
        actions = { admit; @defaultonly deny_port; }
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
        bit<16> values_length = (bit<16>)hdr.kofn.words << 8;
        meta.verdict = verdict_t.ADMITTED;
        if (!hdr.kofn.isValid()) { meta.verdict = verdict_t.TRUNCATED; }
        else if (hdr.kofn.version != KOFN_VERSION) { meta.verdict = verdict_t.BAD_VERSION; }
        else if (hdr.kofn.kind != kind_t.CONTRIBUTE && hdr.kofn.kind != kind_t.PULL) { meta.verdict = verdict_t.BAD_KIND; }
        else if (hdr.kofn.words == 0 || hdr.kofn.words > WORDS_MAX
                 || hdr.udp.length != UDP_AND_KOFN_LENGTH + values_length
                 || hdr.ipv4.total_length != hdr.udp.length + 20) { meta.verdict = verdict_t.BAD_LENGTH; }
        else if (standard_metadata.parser_error != error.NoError) { meta.verdict = verdict_t.TRUNCATED; }
        else if (standard_metadata.checksum_error == 1) { meta.verdict = verdict_t.BAD_CHECKSUM; }
        else if (hdr.kofn.iteration == 0) { meta.verdict = verdict_t.BAD_ITERATION; }  // an empty slot's block_id has iteration 0
        else if (hdr.kofn.part >= PARTS) { meta.verdict = verdict_t.BAD_PART; }

        if (meta.verdict == verdict_t.ADMITTED) { jobs.apply(); }
        if (meta.verdict == verdict_t.ADMITTED && members.apply().hit) {
            bool pulls = hdr.kofn.kind == kind_t.PULL;
            meta.counted = !pulls && hdr.kofn.count != 0;
            // A contribution that does not count towards k is still one addend.
            meta.addends = hdr.kofn.count == 0 ? 16w1 : (bit<16>)hdr.kofn.count;
            bool good_weight = hdr.kofn.weight != 0 && hdr.kofn.weight <= (bit<32>)meta.addends * WEIGHT_MAX;
            if ((bit<16>)hdr.kofn.count > meta.most || (pulls && hdr.kofn.count == 0) || (!pulls && !good_weight)) {
                meta.verdict = verdict_t.BAD_COUNT;
            }
        }
        if (meta.verdict == verdict_t.ADMITTED && hdr.kofn.generation != meta.generation) {
            meta.verdict = verdict_t.OLD_GENERATION;
        }
        if (meta.verdict == verdict_t.ADMITTED) { lanes.apply(); }
        if (meta.verdict == verdict_t.ADMITTED && hdr.kofn.recipient != EVERYONE) { recipients.apply(); }
    }
}
