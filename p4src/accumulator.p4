// One 2048-bit word of every slot's sum, added lane by lane in one expression.
//
// The sum without the lanes' top bits carries into no other lane; exclusive or adds the top bits. So 32-, 16-, 8- and 4-bit
// lanes differ in `high` alone, and one wide register access replaces up to 512 small ones.

control Accumulator(inout word_h word, in metadata_t meta)(register<word_t> sums) {
    apply {
        if (word.isValid()) {
            if (meta.mode == mode_t.STORE) {
                sums.write(meta.buffer, word.value);
            } else {
                word_t sum;
                sums.read(sum, meta.buffer);
                if (meta.mode == mode_t.ADD) {
                    word.value = ((sum & ~meta.high) + (word.value & ~meta.high)) ^ ((sum ^ word.value) & meta.high);
                    sums.write(meta.buffer, word.value);
                } else {
                    word.value = sum;
                }
            }
        }
    }
}
