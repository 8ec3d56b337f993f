// GSO (generic segmentation offload): see gso.h.
#include "gso.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <string.h>

#include "core.h"

const struct virtio_net_hdr gso_alone;

enum {
    TYPE_AT = 12,  // of the EtherType in a frame
    TAG_BYTES = 4,
    UDP_BYTES = 8,
    IP_AT = ETH_HLEN,
    UDP_AT = IP_AT + 20,
    HEADERS_MOST = 128,        // of a received packet
    FRAMES_MOST = 64,          // in one packet: a limit of the kernel
    COALESCED_MOST = 65000,    // bytes of such a packet, less than IPv4's limit
    DONT_FRAGMENT = 0x4000,
};

static uint16_t get(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return ntohs(value);
}

static void put(uint8_t *at, uint32_t value) {
    const uint16_t word = htons((uint16_t)value);
    memcpy(at, &word, sizeof word);
}

// The Internet checksum (RFC 1071) of words in the order of this machine, whose sum is the same but for its byte order.

static uint64_t sum_of(const uint8_t *bytes, uint32_t count) {
    uint64_t sum = 0;
    uint32_t word = 0;
    for (uint32_t i = 0; i < count / 4; i++) {
        memcpy(&word, bytes + 4 * i, 4);
        sum += word;
    }
    word = 0;
    memcpy(&word, bytes + count / 4 * 4, count % 4);
    return sum + word;
}

static uint16_t folded(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

// Write the checksum of a sum. UDP and TCP have 0xffff in place of 0, which in UDP means that there is no checksum.
static void put_transport_checksum(uint8_t *at, uint64_t sum) {
    uint16_t checksum = (uint16_t)~folded(sum);
    if (!checksum) checksum = 0xffff;
    memcpy(at, &checksum, sizeof checksum);
}

// Change a 16-bit field of an IPv4 header and its checksum (RFC 1624): a checksum that was wrong stays wrong.
static void change_field(uint8_t *ip, uint32_t at, uint32_t value) {
    uint16_t before, after, checksum;
    memcpy(&before, ip + at, 2);
    put(ip + at, value);
    memcpy(&after, ip + at, 2);
    memcpy(&checksum, ip + 10, 2);
    checksum = (uint16_t)~folded((uint64_t)(uint16_t)~checksum + (uint16_t)~before + after);
    memcpy(ip + 10, &checksum, 2);
}

// Compute the checksum of a packet whose sender left that to the interface.
static void complete_checksum(uint8_t *packet, uint32_t length, const struct virtio_net_hdr *offload) {
    const uint32_t start = offload->csum_start, at = start + offload->csum_offset;
    if (at + 2 > length) return;
    put_transport_checksum(packet + at, sum_of(packet + start, length - start));
}

// Where the IP header is, if UDP's header at `udp` follows it directly; 0 otherwise, as in a tunnel.
static uint32_t ip_header(const uint8_t *packet, uint32_t udp) {
    uint32_t at = TYPE_AT;
    while (at + 2 < udp && (get(packet + at) == ETH_P_8021Q || get(packet + at) == ETH_P_8021AD)) at += TAG_BYTES;
    const uint32_t type = get(packet + at), ip = at + 2;
    if (type == ETH_P_IP && ip + 20 <= udp && packet[ip + 9] == IPPROTO_UDP && udp == ip + (packet[ip] & 15) * 4u) return ip;
    if (type == ETH_P_IPV6 && ip + 40 == udp && packet[ip + 6] == IPPROTO_UDP) return ip;
    return 0;
}

// The sum of the pseudo header of UDP, without the length.
static uint64_t pseudo_sum(const uint8_t *ip) {
    const int four = ip[0] >> 4 == 4;
    return sum_of(ip + (four ? 12 : 8), four ? 8 : 32) + htons(IPPROTO_UDP);
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
    const uint32_t udp = offload->csum_start, head = udp + UDP_BYTES, most = offload->gso_size;
    const uint32_t ip = head <= length && head <= HEADERS_MOST && most ? ip_header(packet, udp) : 0;
    if (!ip) {
        core->drops[DROP_RECEIVED_TOO_LONG]++;
        return;
    }
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

// Whether UDP's checksum is right, or absent.
static int checksum_fits(const struct msghdr *message, const uint8_t *frame) {
    if (!frame[UDP_AT + 6] && !frame[UDP_AT + 7]) return 1;
    uint64_t sum = sum_of(frame + IP_AT + 12, 8) + htons(IPPROTO_UDP) + htons(get(frame + UDP_AT + 4));
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *part = &message->msg_iov[i];
        const uint32_t skipped = i ? 0 : UDP_AT;
        if (part->iov_len % 2 && i + 1 < message->msg_iovlen) return 0;
        sum += sum_of((uint8_t *)part->iov_base + skipped, (uint32_t)part->iov_len - skipped);
    }
    return folded(sum) == 0xffff;
}

// Whether the kernel, when it segments a packet, can make this frame: a UDP datagram in IPv4 without options, whole, with right
// lengths and checksums.
static int is_segment(const struct msghdr *message, uint64_t length) {
    const uint8_t *frame = message->msg_iov[0].iov_base;
    return message->msg_iov[0].iov_len >= GSO_HEADERS && get(frame + TYPE_AT) == ETH_P_IP && frame[IP_AT] == 0x45 &&
           frame[IP_AT + 9] == IPPROTO_UDP && !(get(frame + IP_AT + 6) & ~DONT_FRAGMENT) &&
           get(frame + IP_AT + 2) == length - ETH_HLEN && get(frame + UDP_AT + 4) == length - UDP_AT && length > GSO_HEADERS &&
           folded(sum_of(frame + IP_AT, 20)) == 0xffff && checksum_fits(message, frame);
}

// Whether a segment can be number `number` after the first one. The identification of a datagram that must not be fragmented has
// no meaning (RFC 6864), so the kernel may count it up.
static int follows(const uint8_t *first, const uint8_t *next, uint32_t number) {
    const int counted = get(next + IP_AT + 4) == (uint16_t)(get(first + IP_AT + 4) + number);
    return !memcmp(first, next, IP_AT + 2) && !memcmp(first + IP_AT + 6, next + IP_AT + 6, 4) &&
           !memcmp(first + IP_AT + 12, next + IP_AT + 12, 12) && (counted || get(next + IP_AT + 6) == DONT_FRAGMENT);
}

// The number of frames, from the first on, that can leave as one packet: all have the same size, but the last one may be shorter.
static uint32_t alike(const struct mmsghdr *messages, const uint64_t *lengths, uint32_t count, uint32_t mtu) {
    uint32_t found = 1;
    uint64_t bytes = lengths[0];
    if (count == 1 || lengths[0] > mtu + ETH_HLEN || !is_segment(&messages[0].msg_hdr, lengths[0])) return 1;
    const uint8_t *first = messages[0].msg_hdr.msg_iov[0].iov_base;
    while (found < count && found < FRAMES_MOST && lengths[found - 1] == lengths[0] && lengths[found] <= lengths[0] &&
           (bytes += lengths[found] - GSO_HEADERS) <= COALESCED_MOST && is_segment(&messages[found].msg_hdr, lengths[found]) &&
           follows(first, messages[found].msg_hdr.msg_iov[0].iov_base, found))
        found++;
    return found;
}

// Write the headers of a packet of `bytes` bytes, which the kernel segments into frames of `each` bytes at most.
static void put_coalesced(struct coalesced_head *head, const uint8_t *first, uint32_t bytes, uint32_t each) {
    head->offload = (struct virtio_net_hdr){.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                            .gso_type = VIRTIO_NET_HDR_GSO_UDP_L4,
                                            .hdr_len = GSO_HEADERS,
                                            .gso_size = (uint16_t)(each - GSO_HEADERS),
                                            .csum_start = UDP_AT,
                                            .csum_offset = 6};
    memcpy(head->headers, first, GSO_HEADERS);
    change_field(head->headers + IP_AT, 2, bytes - IP_AT);
    put(head->headers + UDP_AT + 4, bytes - UDP_AT);
    const uint16_t sum = folded(pseudo_sum(head->headers + IP_AT) + htons((uint16_t)(bytes - UDP_AT)));
    memcpy(head->headers + UDP_AT + 6, &sum, sizeof sum);
}

// Make one message of `frames` messages.
static void coalesce(struct coalesced *to, struct msghdr *message, const struct mmsghdr *from, const uint64_t *lengths,
                     uint32_t frames) {
    const uint32_t begin = to->parts_count;
    uint32_t bytes = GSO_HEADERS;
    struct coalesced_head *head = NULL;
    if (frames > 1) {
        head = &to->heads[to->heads_count++];
        to->parts[to->parts_count++] = (struct iovec){head, sizeof head->offload + GSO_HEADERS};
    } else {
        to->parts[to->parts_count++] = (struct iovec){(void *)&gso_alone, sizeof gso_alone};
    }
    for (uint32_t i = 0; i < frames; i++) {
        const struct msghdr *one = &from[i].msg_hdr;
        bytes += (uint32_t)lengths[i] - GSO_HEADERS;
        for (size_t k = 0; k < one->msg_iovlen; k++) {
            const size_t skipped = head && !k ? GSO_HEADERS : 0;
            struct iovec part = {(uint8_t *)one->msg_iov[k].iov_base + skipped, one->msg_iov[k].iov_len - skipped};
            if (part.iov_len) to->parts[to->parts_count++] = part;
        }
    }
    if (head) put_coalesced(head, from[0].msg_hdr.msg_iov[0].iov_base, bytes, (uint32_t)lengths[0]);
    *message = (struct msghdr){.msg_iov = to->parts + begin, .msg_iovlen = to->parts_count - begin};
}

uint32_t gso_coalesce(struct core *core, uint32_t mtu, const uint64_t *lengths, uint32_t count) {
    struct coalesced *to = core->coalesced;
    uint32_t messages = 0;
    to->parts_count = to->heads_count = 0;
    for (uint32_t at = 0; at < count; at += to->frames[messages++]) {
        to->frames[messages] = alike(core->messages + at, lengths + at, count - at, mtu);
        coalesce(to, &to->messages[messages].msg_hdr, core->messages + at, lengths + at, to->frames[messages]);
    }
    return messages;
}
