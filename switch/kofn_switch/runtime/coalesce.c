// Coalesces frames that leave a port together: see gso.h.
#include "core.h"
#include "frame_fields.h"
#include "gso.h"

const struct virtio_net_hdr gso_alone;

enum {
    IP_AT = ETH_HLEN,
    UDP_AT = IP_AT + 20,
    FRAMES_MOST = 64,  // in one packet: a limit of the kernel
    DONT_FRAGMENT = 0x4000,
};

// Return the headers of a frame that is longer than GSO_HEADERS. If the program does not parse UDP, the headers are in several parts:
// they are copied to `room`.
static const uint8_t *headers_of(const struct msghdr *message, uint8_t room[GSO_HEADERS]) {
    if (message->msg_iov[0].iov_len >= GSO_HEADERS) return message->msg_iov[0].iov_base;
    for (size_t i = 0, found = 0; found < GSO_HEADERS; i++) {
        const struct iovec *part = &message->msg_iov[i];
        const size_t bytes = part->iov_len < GSO_HEADERS - found ? part->iov_len : GSO_HEADERS - found;
        memcpy(room + found, part->iov_base, bytes);
        found += bytes;
    }
    return room;
}

// Return what is left of a part when the next `skip` bytes of its message are skipped; subtract the skipped bytes from `skip`.
static struct iovec rest_of(const struct iovec *part, size_t *skip) {
    const size_t bytes = part->iov_len < *skip ? part->iov_len : *skip;
    *skip -= bytes;
    return (struct iovec){(uint8_t *)part->iov_base + bytes, part->iov_len - bytes};
}

// Whether UDP's checksum is right, or absent.
static int checksum_fits(const struct msghdr *message, const uint8_t *headers) {
    size_t skip = UDP_AT;
    if (!headers[UDP_AT + 6] && !headers[UDP_AT + 7]) return 1;
    uint64_t sum = sum_of(headers + IP_AT + 12, 8) + htons(IPPROTO_UDP) + htons(get(headers + UDP_AT + 4));
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec part = rest_of(&message->msg_iov[i], &skip);
        if (part.iov_len % 2 && i + 1 < message->msg_iovlen) return 0;
        sum += sum_of(part.iov_base, (uint32_t)part.iov_len);
    }
    return folded(sum) == 0xffff;
}

// Whether the kernel, when it segments a packet, can make the frame with these headers: a UDP datagram in IPv4 without options,
// whole, with right lengths and checksums. Of the two right IPv4 checksums 0 and 0xffff the kernel writes 0.
static int is_segment(const struct msghdr *message, const uint8_t *headers, uint64_t length) {
    return get(headers + TYPE_AT) == ETH_P_IP && headers[IP_AT] == 0x45 && headers[IP_AT + 9] == IPPROTO_UDP &&
           !(get(headers + IP_AT + 6) & ~DONT_FRAGMENT) && get(headers + IP_AT + 2) == length - ETH_HLEN &&
           get(headers + UDP_AT + 4) == length - UDP_AT && get(headers + IP_AT + 10) != 0xffff &&
           folded(sum_of(headers + IP_AT, 20)) == 0xffff && checksum_fits(message, headers);
}

// Whether a segment can be number `number` after the first one. The identification of a datagram that must not be fragmented has
// no meaning (RFC 6864), so the kernel may count it up.
static int follows(const uint8_t *first, const uint8_t *next, uint32_t number) {
    const int counted = get(next + IP_AT + 4) == (uint16_t)(get(first + IP_AT + 4) + number);
    return !memcmp(first, next, IP_AT + 2) && !memcmp(first + IP_AT + 6, next + IP_AT + 6, 4) &&
           !memcmp(first + IP_AT + 12, next + IP_AT + 12, 12) && (counted || get(next + IP_AT + 6) == DONT_FRAGMENT);
}

// The number of frames, from the first on, that can leave as one packet: all have the same size, but the last one may be shorter.
// Together they have at most `most` bytes.
static uint32_t alike(const struct mmsghdr *messages, const uint64_t *lengths, uint32_t count, uint32_t mtu, uint32_t most) {
    uint8_t room[2][GSO_HEADERS];
    uint32_t found = 1;
    uint64_t bytes = lengths[0];
    if (count == 1 || !most || lengths[0] > mtu + ETH_HLEN || lengths[0] <= GSO_HEADERS) return 1;
    const uint8_t *first = headers_of(&messages[0].msg_hdr, room[0]);
    if (!is_segment(&messages[0].msg_hdr, first, lengths[0])) return 1;
    while (found < count && found < FRAMES_MOST && lengths[found - 1] == lengths[0] && lengths[found] <= lengths[0] &&
           lengths[found] > GSO_HEADERS && (bytes += lengths[found]) <= most) {
        const struct msghdr *message = &messages[found].msg_hdr;
        const uint8_t *next = headers_of(message, room[1]);
        if (!follows(first, next, found) || !is_segment(message, next, lengths[found])) break;
        found++;
    }
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
        size_t skip = head ? GSO_HEADERS : 0;
        bytes += (uint32_t)lengths[i] - GSO_HEADERS;
        for (size_t k = 0; k < one->msg_iovlen; k++) {
            const struct iovec part = rest_of(&one->msg_iov[k], &skip);
            if (part.iov_len) to->parts[to->parts_count++] = part;
        }
    }
    if (head) {
        uint8_t room[GSO_HEADERS];
        put_coalesced(head, headers_of(&from[0].msg_hdr, room), bytes, (uint32_t)lengths[0]);
    }
    *message = (struct msghdr){.msg_iov = to->parts + begin, .msg_iovlen = to->parts_count - begin};
}

uint32_t gso_coalesce(struct core *core, uint32_t mtu, const uint64_t *lengths, uint32_t count) {
    struct coalesced *to = core->coalesced;
    uint32_t messages = 0;
    to->parts_count = to->heads_count = 0;
    for (uint32_t at = 0; at < count; at += to->frames[messages++]) {
        to->frames[messages] = alike(core->messages + at, lengths + at, count - at, mtu, to->most);
        coalesce(to, &to->messages[messages].msg_hdr, core->messages + at, lengths + at, to->frames[messages]);
    }
    return messages;
}
