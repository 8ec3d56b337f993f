// A leaf's rules for a packet of a worker in its rack.
//
//   block_id < slot's                        STALE            the slot has moved on
//   block_id > slot's, PULL                  ASKED            the PULL goes to the root
//   block_id > slot's, too far (IsAhead),
//   no retransmission                        AHEAD            nothing is added
//   block_id > slot's                        OPENED           both buffers are emptied; then as ADDED
//   block_id = slot's, other words           FORMAT_MISMATCH  members = taken; if the lanes are other ones, too, and the root
//                                                             has not confirmed the open slot's format: the rows below
//   block_id = slot's, closed                LATE             the stored result
//   block_id = slot's, gone                  STALE            the root's slot has moved on
//   block_id = slot's, PULL or taken         urged            one packet goes to the root, as below
//   block_id = slot's, other scale or lanes  FORMAT_MISMATCH  if the root has confirmed the format; else urged
//   block_id = slot's, open                  ADDED            the open buffer takes it
//   ... rack complete, the packet's own k
//       reached, or buffer due (LeafDue)     SENT             the open buffer goes to the root
//
// Urged: a contribution that no buffer holds and the root has not acknowledged goes up alone (PASSED); else the latest
// increment again (SENT); else the open buffer (SENT); else a PULL (ASKED).

control LeafBelow(inout headers_t hdr, inout metadata_t meta, inout leaf_t leaf, in standard_metadata_t standard_metadata) {
    LeafDue() due;
    IsAhead() is_ahead;
    // The open buffer goes to the root: the packet holds, or reads, its sum.
    action freeze() {
        meta.verdict = verdict_t.SENT;
        leaf.at = leaf.at ^ 1;
        leaf.sent_set = leaf.open_set;
        leaf.sent_count = leaf.open_count;
        leaf.sent_weight = leaf.open_weight;
        leaf.open_set = 0;
        leaf.open_count = 0;
        leaf.open_weight = 0;
        leaf.last = 0;
    }

    apply {
        bit<96> block_id = hdr.kofn.generation ++ hdr.kofn.iteration ++ hdr.kofn.block;
        bit<256> contribution = 256w1 << (hdr.kofn.part[1:0] ++ hdr.kofn.worker[5:0]);
        bit<32> format = hdr.kofn.scale ++ hdr.kofn.words ++ hdr.kofn.lanes ++ 4w0;
        bool pulls = hdr.kofn.kind == kind_t.PULL;
        bool urged = false;
        meta.mode = mode_t.SKIP;
        meta.buffer = meta.slot + (bit<32>)leaf.at;
        bool ahead;
        is_ahead.apply(hdr, meta.turn, leaf.block_id, ahead);

        if (block_id < leaf.block_id) {
            meta.verdict = verdict_t.STALE;
        } else if (block_id > leaf.block_id && pulls) {
            meta.verdict = verdict_t.ASKED;
        } else if (ahead && hdr.kofn.flags & AGAIN == 0) {  // an old contribution may have opened a restarted leaf's slot
            meta.verdict = verdict_t.AHEAD;
            meta.refused = true;
        } else {
            if (block_id > leaf.block_id) {
                leaf.block_id = block_id;
                leaf.format = format;
                leaf.phase = OPEN;
                leaf.confirmed = 0;
                leaf.brief = 0;
                leaf.taken = 0;
                leaf.acked = 0;
                leaf.missing = hdr.kofn.k == 0 ? meta.k : hdr.kofn.k;
                leaf.open_set = 0;
                leaf.open_count = 0;
                leaf.open_weight = 0;
                leaf.sent_set = 0;
            }
            if (leaf.brief == 0 && leaf.format[15:8] != hdr.kofn.words
                && (leaf.phase == DONE || leaf.confirmed != 0 || leaf.format[7:4] == hdr.kofn.lanes)) {
                meta.verdict = verdict_t.FORMAT_MISMATCH;
                hdr.kofn.flags = OTHER_WORDS;
            } else if (leaf.phase == DONE) {
                meta.verdict = verdict_t.LATE;
                meta.mode = mode_t.READ;
            } else if (leaf.phase == GONE) {
                meta.verdict = verdict_t.STALE;
            } else if (pulls || leaf.taken & contribution != 0) {
                urged = true;
            } else if (leaf.format != format) {
                meta.verdict = verdict_t.FORMAT_MISMATCH;
                urged = leaf.confirmed == 0;
            } else {
                meta.verdict = verdict_t.ADDED;
                meta.mode = leaf.open_set == 0 ? mode_t.STORE : mode_t.ADD;
                leaf.taken = leaf.taken | contribution;
                leaf.open_set = leaf.open_set | contribution;
                leaf.open_count = leaf.open_count + hdr.kofn.count;
                leaf.open_weight = leaf.open_weight + hdr.kofn.weight;
                leaf.last = (bit<16>)standard_metadata.ingress_port;
                bool enough;
                due.apply(leaf, meta.shift, enough);
                if (enough || leaf.taken & meta.everyone == meta.everyone
                    || (hdr.kofn.k != 0 && leaf.open_count >= hdr.kofn.k)) { freeze(); }
            }
        }
        if (urged) {
            if (!pulls && leaf.taken & contribution != 0
                && (leaf.acked | leaf.open_set | leaf.sent_set) & contribution == 0) {
                meta.verdict = verdict_t.PASSED;
            } else if (leaf.format[15:8] != hdr.kofn.words) {
                meta.verdict = verdict_t.ASKED;
            } else if (leaf.sent_set != 0) {
                meta.verdict = verdict_t.SENT;
                meta.mode = mode_t.READ;
                meta.buffer = meta.slot + (bit<32>)(leaf.at ^ 1);
            } else if (leaf.open_set != 0) {
                meta.mode = mode_t.READ;
                freeze();
            } else {
                meta.verdict = verdict_t.ASKED;
            }
        }
        // A packet to the root describes the increment; an answer describes the slot.
        if (meta.verdict == verdict_t.SENT) {
            hdr.kofn.members = leaf.sent_set;
            hdr.kofn.count = leaf.sent_count;
            hdr.kofn.weight = leaf.sent_weight;
            hdr.kofn.part = 0;
            hdr.kofn.scale = leaf.format[31:16];
            hdr.kofn.lanes = leaf.format[7:4];
        } else if (meta.verdict == verdict_t.PASSED) {
            hdr.kofn.members = contribution;
        } else if (meta.verdict == verdict_t.LATE) {
            meta.slot_racks = 65535;
            if (leaf.brief != 0) { hdr.kofn.words = 0; }
            hdr.kofn.count = leaf.open_count;
            hdr.kofn.weight = leaf.open_weight;
            hdr.kofn.k = leaf.missing;
        } else if (meta.verdict == verdict_t.FORMAT_MISMATCH) {
            hdr.kofn.members = leaf.taken;
        }
        if (meta.verdict == verdict_t.LATE || meta.verdict == verdict_t.FORMAT_MISMATCH) {
            hdr.kofn.scale = leaf.format[31:16];
            hdr.kofn.lanes = leaf.format[7:4];
        }
        meta.lanes = leaf.format[7:4];
    }
}
