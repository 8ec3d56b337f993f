/* Many datagrams at a time between a socket and memory, with the Internet checksum over each of them.
 *
 * A datagram is a head, which has a 16-bit checksum somewhere, and a body. Knows nothing else of what is in them.
 */
#pragma once
#include <stdint.h>

/* At most `most` datagrams that are there: heads one after another, bodies of `room` bytes at `bodies`. `sizes`: of whole
 * datagrams, however long; `sums`: 0 where the checksum fits; `senders`: IPv4 addresses as on the wire, or null. Returns
 * how many have come. */
int64_t datagrams_receive(int socket, uint8_t *heads, int64_t head, uint8_t *const *bodies, int64_t room, int64_t most,
                          int64_t *sizes, uint16_t *sums, uint32_t *senders);

/* Datagrams with their checksums filled in, to where the socket is connected to, or to `places` (addresses as on the
 * wire) at `port` (likewise). What the kernel cannot take is passed over, and `error` says why the last one was.
 * Returns how many it took, and in `left` which. `joins`: whether the kernel may be given several to one end as one, which
 * it cuts up again before the link; becomes 0 where it cannot. */
int64_t datagrams_send(int socket, uint8_t *heads, int64_t head, int64_t checksum, const uint8_t *const *bodies,
                       const int64_t *sizes, int64_t count, const uint32_t *places, uint16_t port, uint8_t *left,
                       int32_t *joins, int32_t *error);
