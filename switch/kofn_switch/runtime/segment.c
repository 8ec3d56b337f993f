// Segments received coalesced packets: see gso.h.
#include "core.h"
#include "frame_fields.h"
#include "gso.h"

enum {
    TAG_BYTES = 4,
    HEADERS_MOST = 128,  // of a packet
};

// Compute the checksum of a packet whose sender left that to the interface.
static void complete_checksum(uint8_t *packet, uint32_t length, const struct virtio_net_hdr *offload) {
    const uint32_t start = offload->csum_start, at = start + offload->csum_offset;
    if (at + 2 > length) return;
    put_transport_checksum(packet + at, sum_of(packet + start, length - start));
}

// Where the headers of a UDP datagram are in a packet.
struct places {
    uint32_t ip, udp;
};

// Find the headers of a UDP datagram in IP. Return 0 if UDP's header does not follow IP's directly, as in a tunnel.
static int find_headers(const uint8_t *packet, uint32_t length, struct places *found) {
    const uint32_t end = length < HEADERS_MOST ? length : HEADERS_MOST;
    uint32_t at = TYPE_AT;
    while (at + 2 < end && (get(packet + at) == ETH_P_8021Q || get(packet + at) == ETH_P_8021AD)) at += TAG_BYTES;
    const uint32_t ip = at + 2;
    if (ip + 20 + UDP_BYTES > end) return 0;
    const int four = get(packet + at) == ETH_P_IP, six = get(packet + at) == ETH_P_IPV6;
    found->ip = ip;
    found->udp = ip + (four ? (packet[ip] & 15) * 4u : 40);
    return (four || six) && packet[ip + (four ? 9 : 6)] == IPPROTO_UDP && found->udp >= ip + 20 && found->udp + UDP_BYTES <= end;
}

static uint8_t *room(struct core *core, uint32_t bytes) {
    if (core->segments_used + bytes > SEGMENTS_BYTES) {
        core_flush(core);
        core->segments_used = 0;
    }
    uint8_t *own = core->segments + core->segments_used;
    core->segments_used += (bytes + 63) & ~63u;
    return own;
}

// Write the headers of a frame: those of the coalesced packet, with the frame's own lengths, identification and checksum.
static void put_headers(uint8_t *frame, uint32_t ip, uint32_t udp, uint32_t number, uint32_t body, uint64_t sum) {
    const uint32_t datagram = UDP_BYTES + body;
    if (frame[ip] >> 4 == 4) {
        change_field(frame + ip, 2, udp - ip + datagram);
        change_field(frame + ip, 4, get(frame + ip + 4) + number);
    } else {
        put(frame + ip + 4, datagram);
    }
    put(frame + udp + 4, datagram);
    memset(frame + udp + 6, 0, 2);
    put_transport_checksum(frame + udp + 6, sum + sum_of(frame + udp, UDP_BYTES) + htons((uint16_t)datagram));
}

static void segment(struct core *core, uint32_t port, uint8_t *packet, uint32_t length,
                    const struct virtio_net_hdr *offload, gso_take take) {
    struct places place;
    const uint32_t most = offload->gso_size;
    // If the kernel has coalesced received frames as a list, their checksums are complete, and csum_start is not set.
    const int partial = offload->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;
    if (!most || !find_headers(packet, length, &place) || (partial && offload->csum_start != place.udp)) {
        core->drops[DROP_RECEIVED_TOO_LONG]++;
        return;
    }
    const uint32_t ip = place.ip, udp = place.udp, head = udp + UDP_BYTES;
    const uint64_t sum = pseudo_sum(packet + ip);
    uint8_t headers[HEADERS_MOST];
    memcpy(headers, packet, head);
    for (uint32_t at = head, number = 0; at < length; at += most, number++) {
        const uint32_t body = length - at < most ? length - at : most;
        uint8_t *frame = packet + at - head;  // the headers overwrite the end of the frame before, unless it is still to be sent
        if (core->borrowed) frame = memcpy(room(core, head + body), frame, head + body);
        memcpy(frame, headers, head);
        put_headers(frame, ip, udp, number, body, sum + sum_of(frame + head, body));
        take(core, port, frame, head + body);
    }
}

void gso_arrived(struct core *core, uint32_t port, uint8_t *packet, uint32_t length, const struct virtio_net_hdr *offload,
                 gso_take take) {
    if ((offload->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_UDP_L4) {
        segment(core, port, packet, length, offload, take);
        return;
    }
    if (offload->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) complete_checksum(packet, length, offload);
    take(core, port, packet, length);
}
