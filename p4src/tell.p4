// The root's answer to an increment that closes no block: ADDED, with the members of the leaf's rack in the sum.
//
// All leaves get it whenever the number of missing contributions has halved, because increments are due by it.

control Tell(in headers_t hdr, inout metadata_t meta) {
    // Missing contributions when all leaves last learned of them.
    register<bit<16>>(SLOTS) tolds;

    apply {
        if (meta.verdict == verdict_t.OPENED || meta.verdict == verdict_t.ADDED || meta.verdict == verdict_t.DUPLICATE
            || meta.verdict == verdict_t.OVERLAP) {
            bit<16> told = meta.k;
            bit<16> missing = meta.k - hdr.kofn.count;
            if (meta.verdict != verdict_t.OPENED) { tolds.read(told, meta.slot); }
            meta.tell = TELL_LEAF;
            if (missing <= told >> 1) {
                meta.tell = TELL_ALL;
                told = missing;
            }
            tolds.write(meta.slot, told);
        }
    }
}
