#include "datagrams.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* The most datagrams of a message that the kernel segments. */
enum { AT_ONCE = 64 };

/* The bytes of a datagram's Ethernet, IPv4 and UDP headers. */
enum { FRAME_BYTES = 42 };

/* Messages that are received at once; bytes of the longest one; and bytes between two, so that they lie in different cache sets. */
enum { MESSAGES = 16, MESSAGE_BYTES = 1 << 16, MESSAGE_STRIDE = MESSAGE_BYTES + 33 * 64 };

/* The size of each datagram of a coalesced message that is sent. */
union cut {
    char room[CMSG_SPACE(sizeof(uint16_t))];
    struct cmsghdr head;
};

/* The size of each datagram of a coalesced message that was received. */
union told {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr head;
};

struct incoming {
    int socket;
    int64_t first, count; /* the messages from `first` on are not split yet */
    int64_t at;           /* bytes of the first of these that are split off */
    struct mmsghdr messages[MESSAGES];
    struct iovec parts[MESSAGES];
    struct sockaddr_in places[MESSAGES];
    union told sizes[MESSAGES];
    uint8_t bytes[MESSAGES][MESSAGE_STRIDE];
};

/* A received datagram. */
struct datagram {
    const uint8_t *bytes;
    int64_t size;
    int truncated;
    uint32_t sender;
};

/* The arguments of one system call that sends. */
struct batch {
    struct mmsghdr messages[AT_ONCE];
    struct iovec parts[AT_ONCE][2];
    struct sockaddr_in places[AT_ONCE];
    union cut cuts[AT_ONCE];
};

static void put_parts(struct batch *batch, int64_t at, void *head, int64_t head_size, void *body, int64_t size) {
    batch->parts[at][0] = (struct iovec){head, (size_t)head_size};
    batch->parts[at][1] = (struct iovec){body, (size_t)size};
}

/* Set up a message of `joined` datagrams, whose parts begin at `at`. */
static struct msghdr *put_message(struct batch *batch, int64_t message, int64_t at, int64_t joined, int placed) {
    struct msghdr *put = &batch->messages[message].msg_hdr;
    memset(put, 0, sizeof *put);
    put->msg_iov = batch->parts[at];
    put->msg_iovlen = 2 * (size_t)joined;
    if (placed) {
        put->msg_name = &batch->places[at];
        put->msg_namelen = sizeof batch->places[at];
    }
    return put;
}

static inline int64_t at_most(int64_t number, int64_t limit) {
    return number < limit ? number : limit;
}

/* The one's complement sum of 16-bit words (RFC 1071), not folded; wider words have the same sum. */
static uint64_t sum_of(const uint8_t *data, int64_t size) {
    const int64_t whole = size / 4;
    uint64_t sum = 0;
    for (int64_t i = 0; i < whole; i++) {
        uint32_t word;
        memcpy(&word, data + 4 * i, 4);
        sum += word;
    }
    uint32_t rest = 0;
    memcpy(&rest, data + 4 * whole, (size_t)(size - 4 * whole));
    return sum + rest;
}

/* -- in */

struct incoming *incoming_open(int socket) {
    const int coalesced = 1;
    struct incoming *opened = malloc(sizeof *opened); /* unused messages never become resident */
    if (!opened)
        return NULL;
    opened->socket = socket;
    opened->first = opened->count = opened->at = 0;
    for (int64_t i = 0; i < MESSAGES; i++)
        opened->parts[i] = (struct iovec){opened->bytes[i], MESSAGE_BYTES};
    setsockopt(socket, IPPROTO_UDP, UDP_GRO, &coalesced, sizeof coalesced); /* if refused, each message is one datagram */
    return opened;
}

void incoming_close(struct incoming *incoming) {
    free(incoming);
}

/* Receive messages once all earlier messages are split; returns whether the socket may have more. */
static int receive_messages(struct incoming *incoming, int64_t wanted) {
    for (int64_t i = 0; i < wanted; i++)
        incoming->messages[i].msg_hdr = (struct msghdr){
            .msg_name = incoming->places + i, .msg_namelen = sizeof *incoming->places, .msg_iov = incoming->parts + i,
            .msg_iovlen = 1, .msg_control = incoming->sizes + i, .msg_controllen = sizeof *incoming->sizes};
    const int64_t came = recvmmsg(incoming->socket, incoming->messages, (unsigned)wanted, MSG_DONTWAIT | MSG_TRUNC, NULL);
    incoming->first = 0;
    incoming->count = came > 0 ? came : 0;
    return came == wanted;
}

/* The size of a message's datagrams, of which the last one may be shorter. A truncated message counts as one datagram. */
static int64_t size_of_each(struct mmsghdr *message) {
    const int64_t whole = message->msg_len;
    int size = 0;
    for (struct cmsghdr *told = CMSG_FIRSTHDR(&message->msg_hdr); told; told = CMSG_NXTHDR(&message->msg_hdr, told))
        if (told->cmsg_level == IPPROTO_UDP && told->cmsg_type == UDP_GRO)
            memcpy(&size, CMSG_DATA(told), sizeof size);
    return size > 0 && whole <= MESSAGE_BYTES ? size : whole;
}

static struct datagram split_off(struct incoming *incoming) {
    const int64_t message = incoming->first, at = incoming->at, whole = incoming->messages[message].msg_len;
    const int64_t size = at_most(size_of_each(incoming->messages + message), whole - at);
    incoming->at = at + size;
    if (incoming->at == whole)
        incoming->first++, incoming->at = 0;
    return (struct datagram){incoming->bytes[message] + at, size, whole > MESSAGE_BYTES,
                             incoming->places[message].sin_addr.s_addr};
}

int64_t datagrams_receive(struct incoming *incoming, uint8_t *heads, int64_t head, uint8_t *const *bodies, int64_t room,
                          int64_t most, int64_t *sizes, uint16_t *sums, uint32_t *senders) {
    int64_t done = 0;
    for (int more = 1;; more = receive_messages(incoming, at_most(most - done, MESSAGES))) {
        for (; done < most && incoming->first < incoming->count; done++) {
            const struct datagram next = split_off(incoming);
            const int fits = head <= next.size && next.size <= head + room && !next.truncated;
            memcpy(heads + done * head, next.bytes, (size_t)at_most(head, next.size));
            if (fits)
                memcpy(bodies[done], next.bytes + head, (size_t)(next.size - head));
            sizes[done] = next.size;
            sums[done] = (uint16_t)((fits ? sum_of(next.bytes, next.size) : 1) % 0xFFFF);
            if (senders)
                senders[done] = next.sender;
        }
        if (done == most || !more)
            return done;
    }
}

/* -- out */

/* Write checksums into the heads, at byte `checksum`; consecutive datagrams often share a body. */
static void fill_in(uint8_t *heads, int64_t head, int64_t checksum, const uint8_t *const *bodies, const int64_t *sizes,
                    int64_t count) {
    uint64_t body = 0;
    for (int64_t i = 0; i < count; i++, heads += head) {
        if (!i || bodies[i] != bodies[i - 1] || sizes[i] != sizes[i - 1])
            body = sum_of(bodies[i], sizes[i]);
        memset(heads + checksum, 0, 2);
        const uint64_t sum = (sum_of(heads, head) + body) % 0xFFFF;
        const uint16_t field = (uint16_t)(sum ? 0xFFFF - sum : 0);
        memcpy(heads + checksum, &field, 2);
    }
}

/* The number of datagrams, from the first on, that can be coalesced: all have the same destination and size, but the last one may
 * be shorter. `places`: their destinations; NULL: the connected peer. Their frames have at most `most_bytes` bytes. */
static int64_t alike(int64_t head, const int64_t *sizes, const uint32_t *places, int64_t count, int64_t most_bytes) {
    int64_t found = 1, bytes = FRAME_BYTES + head + sizes[0];
    while (found < count && sizes[found - 1] == sizes[0] && sizes[found] <= sizes[0] &&
           (!places || places[found] == places[0]) && (bytes += FRAME_BYTES + head + sizes[found]) <= most_bytes)
        found++;
    return found;
}

static void cut_into(struct msghdr *message, union cut *cut, int64_t size) {
    const uint16_t segment = (uint16_t)size;
    cut->head = (struct cmsghdr){CMSG_LEN(sizeof segment), IPPROTO_UDP, UDP_SEGMENT};
    memcpy(CMSG_DATA(&cut->head), &segment, sizeof segment);
    message->msg_control = cut;
    message->msg_controllen = sizeof *cut;
}

/* Set up messages of datagrams whose parts are set; `joined` gets each message's number of datagrams. Returns the number of
 * messages. */
static int64_t put_messages(struct batch *batch, int64_t head, const int64_t *sizes, const uint32_t *places, int64_t count,
                            int joins, int64_t *joined) {
    int64_t messages = 0;
    for (int64_t at = 0; at < count; at += joined[messages++]) {
        joined[messages] = alike(head, sizes + at, places ? places + at : NULL, count - at, joins);
        struct msghdr *message = put_message(batch, messages, at, joined[messages], places != NULL);
        if (joined[messages] > 1)
            cut_into(message, batch->cuts + messages, head + sizes[at]);
    }
    return messages;
}

/* Whether the kernel has refused a message because it is coalesced. */
static int cannot_join(int64_t joined, int error) {
    return joined > 1 && (error == EIO || error == EINVAL || error == EMSGSIZE || error == EOPNOTSUPP);
}

int64_t datagrams_send(int socket, uint8_t *heads, int64_t head, int64_t checksum, const uint8_t *const *bodies,
                       const int64_t *sizes, int64_t count, const uint32_t *places, uint16_t port, uint8_t *left,
                       int32_t *joins, int32_t *error) {
    struct batch batch;
    int64_t done = 0, took = 0, joined[AT_ONCE];
    fill_in(heads, head, checksum, bodies, sizes, count);
    while (done < count) {
        const int64_t wanted = at_most(count - done, AT_ONCE);
        for (int64_t i = 0; i < wanted; i++) {
            const int64_t at = done + i;
            put_parts(&batch, i, heads + at * head, head, (void *)(uintptr_t)bodies[at], sizes[at]);
            if (places)
                batch.places[i] = (struct sockaddr_in){AF_INET, port, {places[at]}, {0}};
        }
        const int64_t messages =
            put_messages(&batch, head, sizes + done, places ? places + done : NULL, wanted, *joins, joined);
        const int64_t went = sendmmsg(socket, batch.messages, (unsigned)messages, 0);
        for (int64_t message = 0; message < went; done += joined[message++]) {
            memset(left + done, 1, (size_t)joined[message]);
            took += joined[message];
        }
        if (went > 0)
            continue;
        *error = errno;
        if (cannot_join(joined[0], errno))
            *joins = 0;
        else
            done += joined[0];
    }
    return took;
}
