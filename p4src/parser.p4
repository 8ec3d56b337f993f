// Ethernet / IPv4 / UDP / kofn / words. Everything else is payload and is only forwarded.

parser KofnParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        // Packets with IP options, and fragments after the first, are not parsed further.
        transition select(hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (5, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            KOFN_PORT: parse_kofn;
            default: accept;
        }
    }

    state parse_kofn {
        packet.extract(hdr.kofn);
        meta.remaining = hdr.kofn.words;
        // Fields of another version have unknown meanings. Admission refuses it, and 0 or too many words.
        transition select(hdr.kofn.version, hdr.kofn.bitmaps, hdr.kofn.words) {
            (KOFN_VERSION, 0, 1 .. WORDS_MAX): parse_word;
            (KOFN_VERSION, 1 .. RACKS_MAX, _): parse_bitmap;
            default: accept;
        }
    }

    state parse_bitmap {
        packet.extract(hdr.bitmaps.next);
        meta.racks = meta.racks + 1;
        transition select(meta.racks == hdr.kofn.bitmaps, hdr.kofn.words) {
            (false, _): parse_bitmap;
            (true, 1 .. WORDS_MAX): parse_word;
            default: accept;
        }
    }

    state parse_word {
        packet.extract(hdr.words.next);
        meta.remaining = meta.remaining - 1;
        transition select(meta.remaining) {
            0: accept;
            default: parse_word;
        }
    }
}

control KofnDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.kofn);
        packet.emit(hdr.bitmaps);
        packet.emit(hdr.words);
    }
}
