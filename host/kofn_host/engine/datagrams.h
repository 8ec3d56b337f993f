/* Batches of datagrams between a socket and memory. Every datagram has an Internet checksum.
 *
 * A datagram is a head, which contains a 16-bit checksum, and a body. This module knows nothing else of a datagram's content.
 */
#pragma once
#include <stdint.h>

/* Receive at most `most` waiting datagrams: heads one after another, bodies of `room` bytes at `bodies`. `sizes` gets the
 * datagrams' whole sizes, also if the datagrams were truncated; `sums`: 0 for a valid checksum; `senders`: IPv4 addresses as on
 * the wire, or null. Returns the number of datagrams. */
int64_t datagrams_receive(int socket, uint8_t *heads, int64_t head, uint8_t *const *bodies, int64_t room, int64_t most,
                          int64_t *sizes, uint16_t *sums, uint32_t *senders);

/* Fill in checksums and send datagrams to the connected peer, or to the addresses `places` at `port`, all as on the wire.
 * Datagrams that the kernel refuses are skipped; `error` gets the errno of the last refusal. Returns the number of datagrams that
 * the kernel accepted; `left` marks these. `joins`: whether datagrams to one peer may be coalesced into a message that the kernel
 * segments before the link; `joins` becomes 0 if the kernel refuses such a message. */
int64_t datagrams_send(int socket, uint8_t *heads, int64_t head, int64_t checksum, const uint8_t *const *bodies,
                       const int64_t *sizes, int64_t count, const uint32_t *places, uint16_t port, uint8_t *left,
                       int32_t *joins, int32_t *error);
