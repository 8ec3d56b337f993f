"""UDP sockets of the data network.

UDP's checksum is off, since packets have kofn's own checksum (p4src/checksum.p4).  UDP's checksum must be on only where
packets may be coalesced.
"""

import contextlib
import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address

from kofn_common.wire.packet import PORT

_SO_NO_CHECK = 11  # linux/asm-generic/socket.h; Python has no name for it
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_SIOCGIFADDR, _SIOCETHTOOL, _ETHTOOL_GTXCSUM = 0x8915, 0x8946, 0x16
_RECEIVE_BUFFER_BYTES, _SEND_BUFFER_BYTES = 16 << 20, 4 << 20


def connected_socket(service: str, local: str = "", port: int = PORT, interface: str = "") -> socket.socket:
    """Return a non-blocking socket bound to `local` (empty: all addresses) and connected to `service`, both at `port`.

    With an `interface` the socket is bound to that interface, so that several workers of a machine can use the same
    port.  OSError if the address is unavailable.
    """
    opened = udp_socket(local, port, interface)
    _enlarge(opened, _SO_SNDBUFFORCE, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    opened.connect((service, port))
    opened.setblocking(False)
    return opened


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two non-blocking sockets on loopback, connected to each other."""
    near, far = udp_socket("127.0.0.1", 0), udp_socket("127.0.0.1", 0)
    for end, peer in ((near, far), (far, near)):
        end.connect(peer.getsockname())
        end.setblocking(False)
    return near, far


def udp_socket(local: str, port: int, interface: str = "") -> socket.socket:
    """Return a bound socket without UDP's checksum, with a large receive buffer; OSError if binding fails."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        if interface:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        _enlarge(opened, _SO_RCVBUFFORCE, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        opened.bind((local, port))
    except BaseException:
        opened.close()
        raise
    return opened


def may_join(opened: socket.socket, *, switch_segments: bool = False) -> bool:
    """Return whether packets of a bound socket may be coalesced, and set its UDP checksum accordingly.

    They may be coalesced on every interface if the switch segments coalesced packets itself (`switch_segments`).  If it
    does not, the kernel must segment them.  It does so before an interface that computes no checksums, such as the
    interfaces of kofn's network without GSO; on loopback, before they are received.  Before an interface that computes
    checksums the kernel may leave packets coalesced: then the other end of a virtual cable to a switch, for instance,
    would see one large packet.  A socket that is bound to all addresses may use every interface.
    """
    found = switch_segments or _is_segmented(opened, IPv4Address(opened.getsockname()[0]))
    opened.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, not found)
    return found


def _is_segmented(opened: socket.socket, local: IPv4Address) -> bool:
    """Return whether the kernel segments coalesced packets from this address; False if no interface has it."""
    if local.is_loopback:
        return True
    everywhere = local.is_unspecified
    used = [name for name, at in _addresses(opened) if at == local or (everywhere and not at.is_loopback)]
    return bool(used) and not any(_computes_checksums(opened, name) for name in used)


def _addresses(opened: socket.socket) -> Iterator[tuple[str, IPv4Address]]:
    """Yield each interface that has an address, and the address."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):  # no address, or the interface is gone
            answer = fcntl.ioctl(opened, _SIOCGIFADDR, struct.pack("16s24x", name.encode()))
            yield name, IPv4Address(answer[20:24])


def _computes_checksums(opened: socket.socket, interface: str) -> bool:
    """Return whether an interface computes checksums; True if it does not say."""
    setting = ctypes.create_string_buffer(struct.pack("=II", _ETHTOOL_GTXCSUM, 1), 8)
    with contextlib.suppress(OSError):
        fcntl.ioctl(opened, _SIOCETHTOOL, struct.pack("16sQ16x", interface.encode(), ctypes.addressof(setting)))
    return bool(struct.unpack("=II", setting.raw)[1])


def _enlarge(opened: socket.socket, forced: int, limited: int, size: int) -> None:
    """Set a socket buffer's size to hold a whole window; without root the size is cut to the system's limit."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, limited, size)
