// A leaf switch of a tree: sums its rack's contributions, and sends the sums as increments to the root.
//
// A leaf's slot has two buffers. The open one takes contributions. The sent one holds the latest increment until the root
// has acknowledged it. Sending an increment exchanges them and forgets what the sent one held.
// `taken`: the contributions in a buffer, on their way, or in the root's sum. `acked`: those in the root's sum.
// The moment at which a leaf sends an increment affects a block's time, but never its sum: the root adds an increment only
// if it has none of its members.

control Leaf(inout headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    register<bit<96>>(SLOTS) block_ids;
    register<bit<32>>(SLOTS) formats;
    register<bit<8>>(SLOTS) states;
    register<bit<256>>(SLOTS) takens;
    register<bit<256>>(SLOTS) ackeds;
    register<bit<16>>(SLOTS) missings;
    register<bit<16>>(SLOTS) lasts;
    // The index of these is a buffer's.
    register<bit<256>>(SLOTS) sets;
    register<bit<16>>(SLOTS) counts;
    register<bit<32>>(SLOTS) weights;

    LeafBelow() below;
    LeafAbove() above;

    apply {
        leaf_t leaf;
        bit<8> state;
        block_ids.read(leaf.block_id, meta.slot);
        formats.read(leaf.format, meta.slot);
        states.read(state, meta.slot);
        takens.read(leaf.taken, meta.slot);
        ackeds.read(leaf.acked, meta.slot);
        missings.read(leaf.missing, meta.slot);
        lasts.read(leaf.last, meta.slot);
        leaf.phase = state[1:0];
        leaf.confirmed = state[2:2];
        leaf.brief = state[3:3];
        leaf.at = state[4:4];
        bit<32> open = meta.slot + (bit<32>)leaf.at;
        bit<32> sent = meta.slot + (bit<32>)(leaf.at ^ 1);
        sets.read(leaf.open_set, open);
        counts.read(leaf.open_count, open);
        weights.read(leaf.open_weight, open);
        sets.read(leaf.sent_set, sent);
        counts.read(leaf.sent_count, sent);
        weights.read(leaf.sent_weight, sent);

        if (meta.from_root) { above.apply(hdr, meta, leaf); } else { below.apply(hdr, meta, leaf, standard_metadata); }

        open = meta.slot + (bit<32>)leaf.at;
        sent = meta.slot + (bit<32>)(leaf.at ^ 1);
        block_ids.write(meta.slot, leaf.block_id);
        formats.write(meta.slot, leaf.format);
        states.write(meta.slot, 3w0 ++ leaf.at ++ leaf.brief ++ leaf.confirmed ++ leaf.phase);
        takens.write(meta.slot, leaf.taken);
        ackeds.write(meta.slot, leaf.acked);
        missings.write(meta.slot, leaf.missing);
        lasts.write(meta.slot, leaf.last);
        sets.write(open, leaf.open_set);
        counts.write(open, leaf.open_count);
        weights.write(open, leaf.open_weight);
        sets.write(sent, leaf.sent_set);
        counts.write(sent, leaf.sent_count);
        weights.write(sent, leaf.sent_weight);
    }
}
