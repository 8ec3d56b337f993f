"""The bytes on the links of a trial: Ethernet frames at the switch's ends.

The embedded switch counts its frames itself: for the kernel's counters, coalesced packets are one frame.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec

LinkBytes = dict[str, tuple[int, int]]
"""By host: bytes to the switch and from it; by leaf: to the root and from it."""

NET_DEV = Path("/proc/net/dev")
"""The counters of this process's network namespace, with the switch's ends of all links; /sys may show another
namespace."""


_PORT = struct.Struct("=4Q")
"""Frames and bytes received, frames and bytes sent."""


def interface_bytes() -> dict[str, tuple[int, int]]:
    """Return the received and sent bytes of every interface of this network namespace."""
    rows = (line.partition(":") for line in NET_DEV.read_text().splitlines()[2:])
    fields = {name.strip(): numbers.split() for name, _, numbers in rows}
    return {name: (int(numbers[0]), int(numbers[8])) for name, numbers in fields.items()}


def port_bytes(counts: Path, port: int) -> tuple[int, int]:
    """Return the received and sent bytes of a switch's port, from the file of `kofn-switch --counts`."""
    with counts.open("rb") as file:
        file.seek(port * _PORT.size)
        _, received, _, sent = _PORT.unpack(file.read(_PORT.size))
    return received, sent


def write_links(path: Path, hosts: Iterable[str], before: LinkBytes, after: LinkBytes) -> None:
    """Write the bytes of these hosts' links between two countings, as JSON."""
    counted = {host: [now - then for now, then in zip(after[host], before[host], strict=True)] for host in hosts}
    path.write_bytes(msgspec.json.encode(counted) + b"\n")


def read_links(path: Path) -> LinkBytes:
    """Read the file of write_links(); empty without a file."""
    return msgspec.json.decode(path.read_bytes(), type=LinkBytes) if path.exists() else {}
