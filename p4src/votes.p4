// Counts 2,048 one-bit votes. Plane p holds bit p of all counts, in its own register. One expression adds a vote to
// each count with carry: (plane, carry) = (plane ^ carry, plane & carry).
//
// Counts grow to `room` at most. Three planes suffice for 7 contributions, seven for 64, so no count overflows. The answer
// has the planes that `room` needs, the lowest first, four words apart.

control Votes(inout word_h vote, inout word_h p1, inout word_h p2, inout word_h p3, inout word_h p4, inout word_h p5, inout word_h p6, in metadata_t meta)
        (register<word_t> sums0, register<word_t> sums1, register<word_t> sums2, register<word_t> sums3, register<word_t> sums4, register<word_t> sums5, register<word_t> sums6) {
    apply {
        if (vote.isValid()) {
            word_t n0 = vote.value;
            word_t n1 = 0;
            word_t n2 = 0;
            word_t n3 = 0;
            word_t n4 = 0;
            word_t n5 = 0;
            word_t n6 = 0;
            if (meta.mode != mode_t.STORE) {
                word_t carry = n0;
                word_t old;
                sums0.read(n0, meta.buffer);
                sums1.read(n1, meta.buffer);
                sums2.read(n2, meta.buffer);
                if (meta.room > 7) {
                    sums3.read(n3, meta.buffer);
                    sums4.read(n4, meta.buffer);
                    sums5.read(n5, meta.buffer);
                    sums6.read(n6, meta.buffer);
                }
                if (meta.mode == mode_t.ADD) {
                    old = n0; n0 = old ^ carry; carry = old & carry;
                    old = n1; n1 = old ^ carry; carry = old & carry;
                    old = n2; n2 = old ^ carry; carry = old & carry;
                    if (meta.room > 7) {
                        old = n3; n3 = old ^ carry; carry = old & carry;
                        old = n4; n4 = old ^ carry; carry = old & carry;
                        old = n5; n5 = old ^ carry; carry = old & carry;
                        old = n6; n6 = old ^ carry; carry = old & carry;
                    }
                }
            }
            if (meta.mode != mode_t.READ) {
                sums0.write(meta.buffer, n0);
                sums1.write(meta.buffer, n1);
                sums2.write(meta.buffer, n2);
                if (meta.room > 7) {
                    sums3.write(meta.buffer, n3);
                    sums4.write(meta.buffer, n4);
                    sums5.write(meta.buffer, n5);
                    sums6.write(meta.buffer, n6);
                }
            }
            vote.value = n0;
            if (meta.room >= 2) { p1.setValid(); p1.value = n1; }
            if (meta.room >= 4) { p2.setValid(); p2.value = n2; }
            if (meta.room >= 8) { p3.setValid(); p3.value = n3; }
            if (meta.room >= 16) { p4.setValid(); p4.value = n4; }
            if (meta.room >= 32) { p5.setValid(); p5.value = n5; }
            if (meta.room >= 64) { p6.setValid(); p6.value = n6; }
        }
    }
}

// Planes beyond the packet's words make it longer. Its first four words are votes; a sender may append words as room for
// planes, because BMv2 lets a packet grow by two words at most.
control AnswerLength(inout headers_t hdr, in metadata_t meta) {
    apply {
        bit<8> votes = hdr.kofn.words < VOTE_WORDS ? hdr.kofn.words : VOTE_WORDS;
        bit<8> words = votes;
        if (meta.room >= 2) { words = words + votes; }
        if (meta.room >= 4) { words = words + votes; }
        if (meta.room >= 8) { words = words + votes; }
        if (meta.room >= 16) { words = words + votes; }
        if (meta.room >= 32) { words = words + votes; }
        if (meta.room >= 64) { words = words + votes; }
        if (words > hdr.kofn.words) {
            hdr.kofn.words = words;
            hdr.udp.length = UDP_AND_KOFN_LENGTH + ((bit<16>)words << 8);
            hdr.ipv4.total_length = hdr.udp.length + 20;
        }
    }
}
