// The Internet checksum (RFC 1071), verified at ingress and computed for answers: IPv4's over its header, kofn's over its
// header and values. UDP's is 0, "not computed", in both directions. kofn's protects the values end to end: hosts and
// network cards would compute UDP's over whatever they hold.

#define IPV4_CHECKSUM_FIELDS(ipv4) { ipv4.version, ipv4.ihl, ipv4.dscp_ecn, ipv4.total_length, ipv4.identification, \
    ipv4.flags, ipv4.fragment_offset, ipv4.ttl, ipv4.protocol, ipv4.src_addr, ipv4.dst_addr }

#define KOFN_HEADER_FIELDS(hdr) \
    hdr.kofn.version, hdr.kofn.kind, hdr.kofn.job, hdr.kofn.worker, hdr.kofn.rack, hdr.kofn.recipient, hdr.kofn.lanes, \
    hdr.kofn.flags, hdr.kofn.words, hdr.kofn.k, hdr.kofn.generation, hdr.kofn.iteration, \
    hdr.kofn.block, hdr.kofn.slot, hdr.kofn.scale, hdr.kofn.count, hdr.kofn.part, hdr.kofn.bitmaps, \
    hdr.kofn.weight, hdr.kofn.members, \
    hdr.bitmaps[0].members, hdr.bitmaps[1].members, hdr.bitmaps[2].members, hdr.bitmaps[3].members, \
    hdr.bitmaps[4].members, hdr.bitmaps[5].members, hdr.bitmaps[6].members, hdr.bitmaps[7].members, \
    hdr.bitmaps[8].members, hdr.bitmaps[9].members, hdr.bitmaps[10].members, hdr.bitmaps[11].members, \
    hdr.bitmaps[12].members, hdr.bitmaps[13].members, hdr.bitmaps[14].members, hdr.bitmaps[15].members

// A packet's missing words are invalid headers, which the sum omits.
#define KOFN_CHECKSUM_FIELDS(hdr) { KOFN_HEADER_FIELDS(hdr), \
    hdr.words[0].value, hdr.words[1].value, hdr.words[2].value, hdr.words[3].value, \
    hdr.words[4].value, hdr.words[5].value, hdr.words[6].value, hdr.words[7].value, \
    hdr.words[8].value, hdr.words[9].value, hdr.words[10].value, hdr.words[11].value, \
    hdr.words[12].value, hdr.words[13].value, hdr.words[14].value, hdr.words[15].value, \
    hdr.words[16].value, hdr.words[17].value, hdr.words[18].value, hdr.words[19].value, \
    hdr.words[20].value, hdr.words[21].value, hdr.words[22].value, hdr.words[23].value, \
    hdr.words[24].value, hdr.words[25].value, hdr.words[26].value, hdr.words[27].value, \
    hdr.words[28].value, hdr.words[29].value, hdr.words[30].value, hdr.words[31].value }

control CheckSums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.kofn.isValid(), IPV4_CHECKSUM_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
        verify_checksum(hdr.kofn.isValid(), KOFN_CHECKSUM_FIELDS(hdr), hdr.kofn.checksum, HashAlgorithm.csum16);
    }
}

control RenewSums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.kofn.isValid(), IPV4_CHECKSUM_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum(hdr.kofn.isValid() && hdr.kofn.words != 0, KOFN_CHECKSUM_FIELDS(hdr), hdr.kofn.checksum,
            HashAlgorithm.csum16);
        // Only the header is sent: Deliver has truncated the words.
        update_checksum(hdr.kofn.isValid() && hdr.kofn.words == 0, { KOFN_HEADER_FIELDS(hdr) }, hdr.kofn.checksum,
            HashAlgorithm.csum16);
    }
}
