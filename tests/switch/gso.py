"""Coalesced UDP datagrams at a packet socket with PACKET_VNET_HDR, in Python: a model of what the kernel does.

opened = socket_of("h1")
opened.send(coalesced(frames))                # one packet, which the kernel may segment
frames = segmented(opened.recv(1 << 17))      # the frames of a received packet
"""

import ctypes
import fcntl
import socket
import struct
from collections.abc import Sequence

from tests.switch.reference.hashes import csum16
from tests.switch.test_ports import MTU, SOL_PACKET, host, links

PACKET_VNET_HDR = 15
SIOCETHTOOL, ETHTOOL_GSTRINGS, ETHTOOL_SFEATURES, ETH_SS_FEATURES = 0x8946, 0x1B, 0x3B, 4
FEATURES_MOST, NAME_BYTES = 128, 32
OFFLOAD = struct.Struct("=BBHHHH")  # struct virtio_net_hdr
NEEDS_CSUM, UDP_L4 = 1, 5
IP, UDP, BODY = 14, 34, 42


def socket_of(interface: str) -> socket.socket:
    """Return a packet socket whose packets begin with a virtio_net_hdr."""
    opened = host(interface)
    opened.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    return opened


def ends(mtu: int = MTU) -> tuple[socket.socket, socket.socket]:
    """Create the veth pairs s1-h1 and s2-h2; return sockets of h1 and h2."""
    for opened in links(2, mtu):
        opened.close()
    return socket_of("h1"), socket_of("h2")


def _ethtool(interface: str, command: bytearray) -> None:
    bytes_of = (ctypes.c_char * len(command)).from_buffer(command)
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(bytes_of))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def set_feature(interface: str, name: str, on: bool) -> None:
    """Turn an interface's feature on or off, as `ethtool -K` does."""
    strings = bytearray(struct.pack("=III", ETHTOOL_GSTRINGS, ETH_SS_FEATURES, 0) + bytes(FEATURES_MOST * NAME_BYTES))
    _ethtool(interface, strings)
    names = [strings[at : at + NAME_BYTES].rstrip(b"\0").decode() for at in range(12, len(strings), NAME_BYTES)]
    block, bit = divmod(names.index(name), 32)
    blocks = -(-int.from_bytes(strings[8:12], "little") // 32)
    masks = [1 << bit if one == block else 0 for one in range(blocks)]
    words = [word for mask in masks for word in (mask, mask if on else 0)]
    _ethtool(interface, bytearray(struct.pack(f"=II{len(words)}I", ETHTOOL_SFEATURES, blocks, *words)))


def pseudo(frame: bytes, length: int) -> bytes:
    return frame[IP + 12 : IP + 20] + struct.pack(">HH", socket.IPPROTO_UDP, length)


def with_udp_checksum(frame: bytes) -> bytes:
    """Return the frame with the right UDP checksum."""
    zeroed = frame[: UDP + 6] + bytes(2) + frame[BODY:]
    found = csum16(pseudo(frame, len(frame) - UDP) + zeroed[UDP:]) or 0xFFFF
    return zeroed[: UDP + 6] + found.to_bytes(2, "big") + frame[BODY:]


def with_ip(frame: bytes, total: int, identification: int) -> bytes:
    """Return the frame with these fields in IPv4's header, and the right checksum there."""
    head = bytearray(frame[IP:UDP])
    head[2:4], head[4:6], head[10:12] = total.to_bytes(2, "big"), (identification % 65536).to_bytes(2, "big"), bytes(2)
    head[10:12] = csum16(bytes(head)).to_bytes(2, "big")
    return frame[:IP] + bytes(head) + frame[UDP:]


def alone(frame: bytes) -> bytes:
    """Return a packet of one frame."""
    return bytes(OFFLOAD.size) + frame


def coalesced(frames: Sequence[bytes]) -> bytes:
    """Return a packet of frames of one flow; all have the first one's size, but the last one may be shorter."""
    size, body = len(frames[0]) - BODY, b"".join(frame[BODY:] for frame in frames)
    head = with_ip(frames[0][:BODY], BODY - IP + len(body), int.from_bytes(frames[0][IP + 4 : IP + 6], "big"))
    length = BODY - UDP + len(body)
    partial = ~csum16(pseudo(head, length)) & 0xFFFF
    udp = head[UDP : UDP + 4] + struct.pack(">HH", length, partial)
    return OFFLOAD.pack(NEEDS_CSUM, UDP_L4, BODY, size, UDP, 6) + head[:UDP] + udp + body


def segmented(packet: bytes) -> list[bytes]:
    """Return the frames of a received packet, as the kernel would make them."""
    _, kind, _, size, start, _ = OFFLOAD.unpack(packet[: OFFLOAD.size])
    frame = packet[OFFLOAD.size :]
    if kind == 0:
        return [frame]
    assert (kind, start) == (UDP_L4, UDP)
    first, frames = int.from_bytes(frame[IP + 4 : IP + 6], "big"), []
    for number, at in enumerate(range(BODY, len(frame), size)):
        body = frame[at : at + size]
        head = with_ip(frame[:BODY], BODY - IP + len(body), first + number)
        head = head[: UDP + 4] + (BODY - UDP + len(body)).to_bytes(2, "big") + head[UDP + 6 :]
        frames.append(with_udp_checksum(head + body))
    return frames
