// GSO (generic segmentation offload): consecutive UDP datagrams of one flow pass the kernel as one coalesced packet, at little more
// than the cost of one frame. A packet socket with the option PACKET_VNET_HDR has a struct virtio_net_hdr before each packet, which
// says how the packet is to be segmented.
//
// The program, captures, faults, queues and counters have single frames: a received packet is segmented first, and frames that
// leave are coalesced last. The kernel gives the receiver, or an interface without GSO, frames with the same bytes, except that a UDP
// checksum of 0 (none) becomes the right checksum, and that a frame that must not be fragmented may get another identification.
#ifndef KOFN_GSO_H
#define KOFN_GSO_H

#include <linux/virtio_net.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4  // older headers
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

#define GSO_HEADERS 42  // bytes of a sent coalesced packet's headers: Ethernet, IPv4 without options, UDP

struct core;

extern const struct virtio_net_hdr gso_alone;  // of a single frame

typedef void (*gso_take)(struct core *core, uint32_t port, const uint8_t *frame, uint32_t length);

// Take a packet that was received at a port: complete its checksum, or segment it. `take` gets each frame, in a place where the
// frame stays until the next core_flush().
void gso_arrived(struct core *core, uint32_t port, uint8_t *packet, uint32_t length, const struct virtio_net_hdr *offload,
                 gso_take take);

// Prepare the core's first `count` messages for a port with this MTU, in core->coalesced. Return the number of messages there.
uint32_t gso_coalesce(struct core *core, uint32_t mtu, const uint64_t *lengths, uint32_t count);

#endif
