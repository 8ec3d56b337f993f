// One 2048-bit word of every slot's sum, added lane by lane in one expression.
//
// Without the lanes' top bits no carry leaves a lane; the top bits are added by exclusive or. So 32-, 16-, 8- and
// 4-bit lanes need only another `high`, and one wide register access replaces up to 512 small ones.

control Accumulator(inout word_h word, in metadata_t meta)(register<word_t> sums) {
    apply {
        if (word.isValid()) {
            if (meta.mode == mode_t.STORE) {
                sums.write(meta.slot, word.value);
            } else {
                word_t sum;
                sums.read(sum, meta.slot);
                if (meta.mode == mode_t.ADD) {
                    word.value = ((sum & ~meta.high) + (word.value & ~meta.high)) ^ ((sum ^ word.value) & meta.high);
                    sums.write(meta.slot, word.value);
                } else {
                    word.value = sum;
                }
            }
        }
    }
}
