// The members of all racks, which RESULT and LATE of a tree carry.
//
// The root's slots keep them rack by rack. A leaf stores those of a result, to answer LATE with them.

control Bitmap(inout kofn_h kofn, inout bitmap_h bitmap, in metadata_t meta)(bit<4> rack, register<bit<256>> members) {
    apply {
        if (meta.from_root) {
            if (bitmap.isValid()) {
                members.write(RACK_ROW(rack, meta.slot), bitmap.members);
            }
        } else if (meta.racks > (bit<8>)rack) {
            bitmap.setValid();
            bitmap.members = 0;
            if (meta.slot_racks & (16w1 << rack) != 0) { members.read(bitmap.members, RACK_ROW(rack, meta.slot)); }
        }
        if (meta.rack[3:0] == rack) { kofn.members = bitmap.members; }
    }
}

control Bitmaps(inout headers_t hdr, inout metadata_t meta)(register<bit<256>> members) {
    Bitmap(0, members) rack00;
    Bitmap(1, members) rack01;
    Bitmap(2, members) rack02;
    Bitmap(3, members) rack03;
    Bitmap(4, members) rack04;
    Bitmap(5, members) rack05;
    Bitmap(6, members) rack06;
    Bitmap(7, members) rack07;
    Bitmap(8, members) rack08;
    Bitmap(9, members) rack09;
    Bitmap(10, members) rack10;
    Bitmap(11, members) rack11;
    Bitmap(12, members) rack12;
    Bitmap(13, members) rack13;
    Bitmap(14, members) rack14;
    Bitmap(15, members) rack15;

    apply {
        if (meta.racks != 0 && (meta.verdict == verdict_t.CLOSED || meta.verdict == verdict_t.LATE)) {
            rack00.apply(hdr.kofn, hdr.bitmaps[0], meta);
            rack01.apply(hdr.kofn, hdr.bitmaps[1], meta);
            rack02.apply(hdr.kofn, hdr.bitmaps[2], meta);
            rack03.apply(hdr.kofn, hdr.bitmaps[3], meta);
            rack04.apply(hdr.kofn, hdr.bitmaps[4], meta);
            rack05.apply(hdr.kofn, hdr.bitmaps[5], meta);
            rack06.apply(hdr.kofn, hdr.bitmaps[6], meta);
            rack07.apply(hdr.kofn, hdr.bitmaps[7], meta);
            rack08.apply(hdr.kofn, hdr.bitmaps[8], meta);
            rack09.apply(hdr.kofn, hdr.bitmaps[9], meta);
            rack10.apply(hdr.kofn, hdr.bitmaps[10], meta);
            rack11.apply(hdr.kofn, hdr.bitmaps[11], meta);
            rack12.apply(hdr.kofn, hdr.bitmaps[12], meta);
            rack13.apply(hdr.kofn, hdr.bitmaps[13], meta);
            rack14.apply(hdr.kofn, hdr.bitmaps[14], meta);
            rack15.apply(hdr.kofn, hdr.bitmaps[15], meta);
            hdr.kofn.bitmaps = meta.racks;
            hdr.udp.length = UDP_AND_KOFN_LENGTH + ((bit<16>)meta.racks << 5) + ((bit<16>)hdr.kofn.words << 8);
            hdr.ipv4.total_length = hdr.udp.length + 20;
        }
    }
}
