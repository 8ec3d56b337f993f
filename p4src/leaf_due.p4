// Whether a leaf's open buffer is due: it has as many counted contributions as the root misses >> shift.
//
// All leaves together hold back at most half of what the root misses (leaf_shift in common/kofn_common/wire/packet.py). With
// shift 0 a buffer is never due: a leaf waits for its whole rack.

control LeafDue(in leaf_t leaf, in bit<8> shift, out bool due) {
    apply { due = shift != 0 && leaf.open_count != 0 && leaf.open_count >= leaf.missing >> shift; }
}
