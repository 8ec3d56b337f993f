// A slot sums one block at a time. Its block_id, (generation, iteration, block), only grows, so a new generation
// supersedes whatever a slot holds. "These" are the contributions of the packet: one of a worker, several of a leaf.
//
//   block_id < slot's                        STALE            the slot has moved on
//   block_id > slot's, too far (IsAhead)     AHEAD            nothing is added
//   block_id > slot's                        OPENED           members := {contribution}, the values are stored
//   block_id = slot's, other words           FORMAT_MISMATCH  nothing is added, the slot's format returns
//   block_id = slot's, closed                LATE             the sum returns to the sender
//   block_id = slot's, has all of these      DUPLICATE        nothing is added
//   block_id = slot's, other scale or lanes  FORMAT_MISMATCH  as above
//   block_id = slot's, has some of these     OVERLAP          nothing is added
//   block_id = slot's, open                  ADDED            members + contribution
//   not counted, and k counted contributions
//     would no longer fit beside it          FULL             nothing is added, no block is opened
//   ... and k counted ones are in the sum    CLOSED           until the block changes. After k was lowered a duplicate closes it
//   ... and no room for more                 CLOSED           k was raised after uncounted ones had been added
//   PULL of anything but a closed block      NOT_READY
//
// A worker contributes up to four parts to a block. This control only decides: the accumulators follow meta.mode.

control Slot(inout headers_t hdr, inout metadata_t meta)(register<bit<256>> members) {
    register<bit<96>>(SLOTS) block_ids;
    register<bit<16>>(SLOTS) counts;
    register<bit<16>>(SLOTS) addends;
    register<bit<32>>(SLOTS) weights;
    // Whether the block is closed, and the racks that have members.
    register<bit<17>>(SLOTS) states;
    // scale, words, lanes: all addends of a block must agree.
    register<bit<32>>(SLOTS) formats;
    IsAhead() is_ahead;

    apply {
        bit<96> block_id = hdr.kofn.generation ++ hdr.kofn.iteration ++ hdr.kofn.block;
        bit<256> contribution = 256w1 << (hdr.kofn.part[1:0] ++ hdr.kofn.worker[5:0]);
        if (meta.from_leaf) { contribution = hdr.kofn.members; }
        bit<16> rack = 16w1 << meta.rack[3:0];
        bit<32> row = RACK_ROW(meta.rack[3:0], meta.slot);
        bit<32> format = hdr.kofn.scale ++ hdr.kofn.words ++ hdr.kofn.lanes ++ 4w0;
        bit<96> slot_block_id;
        bit<256> slot_members;
        bit<16> slot_count;
        bit<16> slot_addends;
        bit<32> slot_weight;
        bit<17> slot_state;
        bit<32> slot_format;
        block_ids.read(slot_block_id, meta.slot);
        members.read(slot_members, row);
        counts.read(slot_count, meta.slot);
        addends.read(slot_addends, meta.slot);
        weights.read(slot_weight, meta.slot);
        states.read(slot_state, meta.slot);
        formats.read(slot_format, meta.slot);

        // The packet's k overrides the job's unless it is 0; owned blocks have k = 1.
        if (hdr.kofn.k != 0) { meta.k = hdr.kofn.k; }
        bit<16> slot_racks = slot_state[15:0];
        bit<1> slot_done = slot_state[16:16];
        if (slot_racks & rack == 0) { slot_members = 0; }
        bool pulls = hdr.kofn.kind == kind_t.PULL;
        bit<16> merged = block_id == slot_block_id ? slot_addends - slot_count : 16w0;
        bool full = hdr.kofn.count == 0 && (bit<32>)merged + (bit<32>)meta.k >= (bit<32>)meta.room;
        bool ahead;
        is_ahead.apply(hdr, meta.turn, slot_block_id, ahead);
        meta.mode = mode_t.SKIP;

        if (block_id < slot_block_id) {
            meta.verdict = verdict_t.STALE;
        } else if (block_id > slot_block_id) {
            if (pulls) {
                meta.verdict = verdict_t.NOT_READY;
            } else if (ahead) {
                meta.verdict = verdict_t.AHEAD;
                meta.refused = true;
            } else if (full) {
                meta.verdict = verdict_t.FULL;
            } else {
                meta.verdict = verdict_t.OPENED;
                meta.mode = mode_t.STORE;
                slot_members = contribution;
                slot_racks = rack;
                slot_count = hdr.kofn.count;
                slot_addends = meta.addends;
                slot_weight = hdr.kofn.weight;
                slot_done = 0;
                slot_format = format;
            }
        } else if (slot_format[15:8] != hdr.kofn.words) {
            meta.verdict = verdict_t.FORMAT_MISMATCH;
            hdr.kofn.flags = OTHER_WORDS;
        } else if (slot_done == 1) {
            meta.verdict = verdict_t.LATE;
            meta.mode = mode_t.READ;
        } else if (pulls && !meta.from_leaf) {
            meta.verdict = verdict_t.NOT_READY;
        } else if (pulls || contribution & ~slot_members == 0) {
            meta.verdict = verdict_t.DUPLICATE;
        } else if (slot_format != format) {
            meta.verdict = verdict_t.FORMAT_MISMATCH;
        } else if (slot_members & contribution != 0) {
            meta.verdict = verdict_t.OVERLAP;
        } else if (full) {
            meta.verdict = verdict_t.FULL;
        } else {
            meta.verdict = verdict_t.ADDED;
            meta.mode = mode_t.ADD;
            slot_members = slot_members | contribution;
            slot_racks = slot_racks | rack;
            slot_count = slot_count + hdr.kofn.count;
            slot_addends = slot_addends + meta.addends;
            slot_weight = slot_weight + hdr.kofn.weight;
        }

        meta.closes = (slot_count >= meta.k || slot_addends >= meta.room) && (meta.verdict == verdict_t.OPENED
            || meta.verdict == verdict_t.ADDED || meta.verdict == verdict_t.DUPLICATE || meta.verdict == verdict_t.OVERLAP);
        if (meta.closes) {
            slot_done = 1;
            if (meta.verdict != verdict_t.OPENED && meta.verdict != verdict_t.ADDED) { meta.mode = mode_t.READ; }
            meta.verdict = verdict_t.CLOSED;
        }
        if (meta.verdict == verdict_t.OPENED || meta.verdict == verdict_t.ADDED || meta.closes) {
            block_ids.write(meta.slot, block_id);
            members.write(row, slot_members);
            counts.write(meta.slot, slot_count);
            addends.write(meta.slot, slot_addends);
            weights.write(meta.slot, slot_weight);
            states.write(meta.slot, slot_done ++ slot_racks);
            formats.write(meta.slot, slot_format);
        }
        meta.lanes = slot_format[7:4];
        meta.slot_racks = slot_racks;
        // An answer describes the slot's sum, except STALE, which keeps the sender's fields.
        if (meta.verdict == verdict_t.CLOSED || meta.verdict == verdict_t.LATE || meta.verdict == verdict_t.FORMAT_MISMATCH
            || (meta.from_leaf && meta.verdict != verdict_t.STALE && meta.verdict != verdict_t.NOT_READY)) {
            hdr.kofn.members = slot_members;
            hdr.kofn.count = slot_count;
            hdr.kofn.weight = slot_weight;
            hdr.kofn.scale = slot_format[31:16];
            hdr.kofn.lanes = slot_format[7:4];
            hdr.kofn.k = meta.k;
        }
    }
}
