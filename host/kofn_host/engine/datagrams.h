/* Batches of datagrams between a socket and memory. Every datagram has an Internet checksum.
 *
 * A datagram is a head, which contains a 16-bit checksum, and a body. This module knows nothing else of a datagram's content.
 */
#pragma once
#include <stdint.h>

/* The messages that were received from one socket and are not split into datagrams yet: the kernel may coalesce datagrams of
 * one sender into one message (UDP_GRO). */
struct incoming;

/* Let the kernel coalesce the socket's datagrams, if it can; from then on only datagrams_receive() may read the socket. NULL
 * without memory. */
struct incoming *incoming_open(int socket);
/* Free the object; the datagrams in it are lost. */
void incoming_close(struct incoming *incoming);

/* Receive at most `most` waiting datagrams: heads one after another, bodies of `room` bytes at `bodies`. `sizes` gets the
 * datagrams' whole sizes; a datagram that is too long or too short has no body. `sums`: 0 for a valid checksum; `senders`: IPv4
 * addresses as on the wire, or null. Returns the number of datagrams. If it is `most`, more datagrams may wait although the
 * socket is not readable. */
int64_t datagrams_receive(struct incoming *incoming, uint8_t *heads, int64_t head, uint8_t *const *bodies, int64_t room,
                          int64_t most, int64_t *sizes, uint16_t *sums, uint32_t *senders);

/* Fill in checksums and send datagrams to the connected peer, or to the addresses `places` at `port`, all as on the wire.
 * Datagrams that the kernel refuses are skipped; `error` gets the errno of the last refusal. Returns the number of datagrams that
 * the kernel accepted; `left` marks these. `joins`: the most bytes of the frames of coalesced datagrams to one peer, which the
 * kernel or the switch segments; `joins` becomes 0 if the kernel refuses such a message. */
int64_t datagrams_send(int socket, uint8_t *heads, int64_t head, int64_t checksum, const uint8_t *const *bodies,
                       const int64_t *sizes, int64_t count, const uint32_t *places, uint16_t port, uint8_t *left,
                       int32_t *joins, int32_t *error);
