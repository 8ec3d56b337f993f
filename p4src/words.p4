// The words of a packet, each through its own accumulator. WORDS_MAX of headers.p4 in the only form P4 has for it.

control Words(inout headers_t hdr, in metadata_t meta) {
    Accumulator() word00;
    Accumulator() word01;
    Accumulator() word02;
    Accumulator() word03;
    Accumulator() word04;
    Accumulator() word05;
    Accumulator() word06;
    Accumulator() word07;
    Accumulator() word08;
    Accumulator() word09;
    Accumulator() word10;
    Accumulator() word11;
    Accumulator() word12;
    Accumulator() word13;
    Accumulator() word14;
    Accumulator() word15;
    Accumulator() word16;
    Accumulator() word17;
    Accumulator() word18;
    Accumulator() word19;
    Accumulator() word20;
    Accumulator() word21;
    Accumulator() word22;
    Accumulator() word23;
    Accumulator() word24;
    Accumulator() word25;
    Accumulator() word26;
    Accumulator() word27;
    Accumulator() word28;
    Accumulator() word29;
    Accumulator() word30;
    Accumulator() word31;

    apply {
        if (meta.mode != mode_t.SKIP) {
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
        }
    }
}
