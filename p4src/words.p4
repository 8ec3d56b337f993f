// The words of a packet: lanes, which each word's accumulator sums, or votes, which are counted in bit planes.
// P4 has no loop over WORDS_MAX (sizes.p4), so each word stands here.
//
// Both use the same registers. Register 4 p + w holds bit p of the 2,048 counts of a packet's word w of votes.

control Words(inout headers_t hdr, in metadata_t meta) {
    register<word_t>(SLOTS) sums00;
    register<word_t>(SLOTS) sums01;
    register<word_t>(SLOTS) sums02;
    register<word_t>(SLOTS) sums03;
    register<word_t>(SLOTS) sums04;
    register<word_t>(SLOTS) sums05;
    register<word_t>(SLOTS) sums06;
    register<word_t>(SLOTS) sums07;
    register<word_t>(SLOTS) sums08;
    register<word_t>(SLOTS) sums09;
    register<word_t>(SLOTS) sums10;
    register<word_t>(SLOTS) sums11;
    register<word_t>(SLOTS) sums12;
    register<word_t>(SLOTS) sums13;
    register<word_t>(SLOTS) sums14;
    register<word_t>(SLOTS) sums15;
    register<word_t>(SLOTS) sums16;
    register<word_t>(SLOTS) sums17;
    register<word_t>(SLOTS) sums18;
    register<word_t>(SLOTS) sums19;
    register<word_t>(SLOTS) sums20;
    register<word_t>(SLOTS) sums21;
    register<word_t>(SLOTS) sums22;
    register<word_t>(SLOTS) sums23;
    register<word_t>(SLOTS) sums24;
    register<word_t>(SLOTS) sums25;
    register<word_t>(SLOTS) sums26;
    register<word_t>(SLOTS) sums27;
    register<word_t>(SLOTS) sums28;
    register<word_t>(SLOTS) sums29;
    register<word_t>(SLOTS) sums30;
    register<word_t>(SLOTS) sums31;

    Accumulator(sums00) word00;
    Accumulator(sums01) word01;
    Accumulator(sums02) word02;
    Accumulator(sums03) word03;
    Accumulator(sums04) word04;
    Accumulator(sums05) word05;
    Accumulator(sums06) word06;
    Accumulator(sums07) word07;
    Accumulator(sums08) word08;
    Accumulator(sums09) word09;
    Accumulator(sums10) word10;
    Accumulator(sums11) word11;
    Accumulator(sums12) word12;
    Accumulator(sums13) word13;
    Accumulator(sums14) word14;
    Accumulator(sums15) word15;
    Accumulator(sums16) word16;
    Accumulator(sums17) word17;
    Accumulator(sums18) word18;
    Accumulator(sums19) word19;
    Accumulator(sums20) word20;
    Accumulator(sums21) word21;
    Accumulator(sums22) word22;
    Accumulator(sums23) word23;
    Accumulator(sums24) word24;
    Accumulator(sums25) word25;
    Accumulator(sums26) word26;
    Accumulator(sums27) word27;
    Accumulator(sums28) word28;
    Accumulator(sums29) word29;
    Accumulator(sums30) word30;
    Accumulator(sums31) word31;

    Votes(sums00, sums04, sums08, sums12, sums16, sums20, sums24) votes0;
    Votes(sums01, sums05, sums09, sums13, sums17, sums21, sums25) votes1;
    Votes(sums02, sums06, sums10, sums14, sums18, sums22, sums26) votes2;
    Votes(sums03, sums07, sums11, sums15, sums19, sums23, sums27) votes3;
    AnswerLength() lengths;

    apply {
        if (meta.mode != mode_t.SKIP) {
            if (meta.lanes != VOTES) {
                word00.apply(hdr.words[0], meta);
                word01.apply(hdr.words[1], meta);
                word02.apply(hdr.words[2], meta);
                word03.apply(hdr.words[3], meta);
                word04.apply(hdr.words[4], meta);
                word05.apply(hdr.words[5], meta);
                word06.apply(hdr.words[6], meta);
                word07.apply(hdr.words[7], meta);
                word08.apply(hdr.words[8], meta);
                word09.apply(hdr.words[9], meta);
                word10.apply(hdr.words[10], meta);
                word11.apply(hdr.words[11], meta);
                word12.apply(hdr.words[12], meta);
                word13.apply(hdr.words[13], meta);
                word14.apply(hdr.words[14], meta);
                word15.apply(hdr.words[15], meta);
                word16.apply(hdr.words[16], meta);
                word17.apply(hdr.words[17], meta);
                word18.apply(hdr.words[18], meta);
                word19.apply(hdr.words[19], meta);
                word20.apply(hdr.words[20], meta);
                word21.apply(hdr.words[21], meta);
                word22.apply(hdr.words[22], meta);
                word23.apply(hdr.words[23], meta);
                word24.apply(hdr.words[24], meta);
                word25.apply(hdr.words[25], meta);
                word26.apply(hdr.words[26], meta);
                word27.apply(hdr.words[27], meta);
                word28.apply(hdr.words[28], meta);
                word29.apply(hdr.words[29], meta);
                word30.apply(hdr.words[30], meta);
                word31.apply(hdr.words[31], meta);
            } else {
                votes0.apply(hdr.words[0], hdr.words[4], hdr.words[8], hdr.words[12], hdr.words[16], hdr.words[20], hdr.words[24], meta);
                votes1.apply(hdr.words[1], hdr.words[5], hdr.words[9], hdr.words[13], hdr.words[17], hdr.words[21], hdr.words[25], meta);
                votes2.apply(hdr.words[2], hdr.words[6], hdr.words[10], hdr.words[14], hdr.words[18], hdr.words[22], hdr.words[26], meta);
                votes3.apply(hdr.words[3], hdr.words[7], hdr.words[11], hdr.words[15], hdr.words[19], hdr.words[23], hdr.words[27], meta);
                lengths.apply(hdr, meta);
            }
        }
    }
}
