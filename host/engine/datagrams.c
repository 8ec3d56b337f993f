#include "datagrams.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

enum { AT_ONCE = 64 };

/* What one system call takes. */
struct batch {
    struct mmsghdr messages[AT_ONCE];
    struct iovec parts[AT_ONCE][2];
    struct sockaddr_in places[AT_ONCE];
};

static void put(struct batch *batch, int64_t at, void *head, int64_t head_size, void *body, int64_t size, int placed) {
    struct msghdr *message = &batch->messages[at].msg_hdr;
    batch->parts[at][0] = (struct iovec){head, (size_t)head_size};
    batch->parts[at][1] = (struct iovec){body, (size_t)size};
    memset(message, 0, sizeof *message);
    message->msg_iov = batch->parts[at];
    message->msg_iovlen = 2;
    if (placed) {
        message->msg_name = &batch->places[at];
        message->msg_namelen = sizeof batch->places[at];
    }
}

static inline int64_t at_most(int64_t number, int64_t limit) {
    return number < limit ? number : limit;
}

/* The one's complement sum of 16-bit words (RFC 1071), not folded: wider words have the same. */
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

int64_t datagrams_receive(int socket, uint8_t *heads, int64_t head, uint8_t *const *bodies, int64_t room, int64_t most,
                          int64_t *sizes, uint16_t *sums, uint32_t *senders) {
    struct batch batch;
    int64_t done = 0, wanted, came;
    do {
        wanted = at_most(most - done, AT_ONCE);
        for (int64_t i = 0; i < wanted; i++)
            put(&batch, i, heads + (done + i) * head, head, bodies[done + i], room, senders != NULL);
        came = recvmmsg(socket, batch.messages, (unsigned)wanted, MSG_DONTWAIT | MSG_TRUNC, NULL);
        for (int64_t i = 0; i < came; i++, done++) {
            const int64_t size = sizes[done] = batch.messages[i].msg_len;
            const int whole = head <= size && size <= head + room;
            const uint64_t sum = whole ? sum_of(heads + done * head, head) + sum_of(bodies[done], size - head) : 1;
            sums[done] = (uint16_t)(sum % 0xFFFF);
            if (senders)
                senders[done] = batch.places[i].sin_addr.s_addr;
        }
    } while (came == wanted && done < most);
    return done;
}

/* Into each head, at byte `checksum`; bodies that follow each other are often the same. */
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

int64_t datagrams_send(int socket, uint8_t *heads, int64_t head, int64_t checksum, const uint8_t *const *bodies,
                       const int64_t *sizes, int64_t count, const uint32_t *places, uint16_t port, uint8_t *left,
                       int32_t *error) {
    struct batch batch;
    int64_t done = 0, took = 0;
    fill_in(heads, head, checksum, bodies, sizes, count);
    while (done < count) {
        const int64_t wanted = at_most(count - done, AT_ONCE);
        for (int64_t i = 0; i < wanted; i++) {
            const int64_t at = done + i;
            put(&batch, i, heads + at * head, head, (void *)(uintptr_t)bodies[at], sizes[at], places != NULL);
            if (places)
                batch.places[i] = (struct sockaddr_in){AF_INET, port, {places[at]}, {0}};
        }
        const int64_t went = sendmmsg(socket, batch.messages, (unsigned)wanted, 0);
        for (int64_t i = 0; i < went; i++)
            left[done + i] = 1;
        if (went <= 0)
            *error = errno;
        took += went > 0 ? went : 0;
        done += went > 0 ? went : 1;
    }
    return took;
}
