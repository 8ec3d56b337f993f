// A leaf's rules for a packet of the root.
//
//   block_id < slot's                             IGNORED  the rack's workers get STALE, and peers have the result
//   RESULT, LATE: > slot's, or = and not closed   CLOSED   stored, and sent to all workers of the rack
//   STALE: = slot's, open                         HEARD    gone: workers get STALE from now on
//   ADDED, FORMAT_MISMATCH: = slot's, open,
//     in another format than the slot's           HEARD    the slot begins again in the root's format
//     in the slot's                               HEARD    members are acknowledged; a buffer with any of them is emptied
//       ... and the open buffer is due (LeafDue)  HEARD    the worker of its latest contribution gets ADDED, and repeats it
//   else                                          IGNORED
//
// The root never adds a buffer that holds some of the acknowledged members. So the buffer's other members leave `taken`, and
// their workers' repetitions bring them again.

control LeafAbove(inout headers_t hdr, inout metadata_t meta, inout leaf_t leaf) {
    LeafDue() due;

    apply {
        bit<96> block_id = hdr.kofn.generation ++ hdr.kofn.iteration ++ hdr.kofn.block;
        bit<32> format = hdr.kofn.scale ++ hdr.kofn.words ++ hdr.kofn.lanes ++ 4w0;
        bool results = hdr.kofn.kind == kind_t.RESULT || hdr.kofn.kind == kind_t.LATE;
        meta.mode = mode_t.SKIP;
        meta.verdict = verdict_t.IGNORED;

        if (results && (block_id > leaf.block_id || (block_id == leaf.block_id && leaf.phase != DONE))) {
            meta.verdict = verdict_t.CLOSED;
            meta.mode = mode_t.STORE;
            leaf.block_id = block_id;
            leaf.format = format;
            leaf.phase = DONE;
            leaf.brief = hdr.kofn.words == 0 ? 1w1 : 1w0;
            leaf.taken = 0;
            leaf.at = 0;
            leaf.open_count = hdr.kofn.count;
            leaf.open_weight = hdr.kofn.weight;
            leaf.missing = hdr.kofn.k;
            meta.buffer = meta.slot;
        } else if (block_id == leaf.block_id && leaf.phase == OPEN && !results) {
            meta.verdict = verdict_t.HEARD;
            if (hdr.kofn.kind == kind_t.STALE) {
                leaf.phase = GONE;
            } else {
                leaf.confirmed = 1;
                leaf.acked = leaf.acked | hdr.kofn.members;
                leaf.missing = hdr.kofn.k |-| hdr.kofn.count;
                if (leaf.format[31:16] != hdr.kofn.scale || leaf.format[7:4] != hdr.kofn.lanes) {
                    // A block has half as many words in lanes half as wide.
                    bit<8> words = leaf.format[15:8] << leaf.format[7:4] >> hdr.kofn.lanes;
                    leaf.format = hdr.kofn.scale ++ words ++ hdr.kofn.lanes ++ 4w0;
                    leaf.acked = hdr.kofn.members;
                    leaf.taken = 0;
                    leaf.open_set = 0;
                    leaf.sent_set = 0;
                }
                leaf.taken = leaf.taken | hdr.kofn.members;
                if (leaf.open_set & leaf.acked != 0) {
                    leaf.taken = leaf.taken & ~(leaf.open_set & ~leaf.acked);
                    leaf.open_set = 0;
                }
                if (leaf.sent_set & leaf.acked != 0) {
                    leaf.taken = leaf.taken & ~(leaf.sent_set & ~leaf.acked);
                    leaf.sent_set = 0;
                }
                if (leaf.open_set == 0) {
                    leaf.open_count = 0;
                    leaf.open_weight = 0;
                    leaf.last = 0;
                }
                bool enough;
                due.apply(leaf, meta.shift, enough);
                if (enough && leaf.last != 0 && leaf.sent_set == 0) {
                    meta.tell = TELL_WORKER;
                    meta.onward = leaf.last[8:0];
                    leaf.last = 0;
                }
            }
        }
    }
}
