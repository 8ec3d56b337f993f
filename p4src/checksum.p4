// IPv4's header checksum: verified on the way in, written anew on the answers.
// UDP's is 0, "not computed", in both directions: the sums change every packet's payload.

#define IPV4_CHECKSUM_FIELDS(ipv4) { ipv4.version, ipv4.ihl, ipv4.dscp_ecn, ipv4.total_length, ipv4.identification, \
    ipv4.flags, ipv4.fragment_offset, ipv4.ttl, ipv4.protocol, ipv4.src_addr, ipv4.dst_addr }

control CheckIpv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.kofn.isValid(), IPV4_CHECKSUM_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control RenewIpv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.kofn.isValid(), IPV4_CHECKSUM_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
