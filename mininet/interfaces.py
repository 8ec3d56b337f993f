"""Interfaces: iproute2 in batches, link shaping, and what ioctl and /proc do without another tool.

All functions act on the network namespace that the process is in. This module must not know topologies.
"""

import ctypes
import fcntl
import json
import socket
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from errors import NetworkError

FRAME_HEADER = 14
"""Bytes of Ethernet header that tbf counts above the IP packet."""

QUEUE_S = 0.2
"""The time that the packets in a full queue of a shaped link take to leave."""

SIOCETHTOOL = 0x8946

OFFLOADS = {"rx checksum": 0x15, "tx checksum": 0x17, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
"""ETHTOOL_S... commands of linux/ethtool.h; the number of the command that reads a setting is one less.

They are turned off, so that each packet crosses the link as it is counted, with its checksum computed, and never as a
64 KiB super-packet that the switch cannot parse.
"""

NEEDED = ("rx checksum", "tx checksum")
"""The offloads that stay if coalesced UDP datagrams may cross a link: they have no checksums before they are segmented.
TCP's segments are not coalesced by the sender."""


def ip(lines: Iterable[str]) -> None:
    """Run `ip` commands in one process; NetworkError quotes the first command that failed."""
    _batch("ip", lines)


def tc(lines: Iterable[str]) -> None:
    """Run `tc` commands in one process; NetworkError quotes the first command that failed."""
    _batch("tc", lines)


def _batch(tool: str, lines: Iterable[str]) -> None:
    script = list(lines)
    result = subprocess.run(
        [tool, "-batch", "-"], input="\n".join(script) + "\n", capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        return
    complaint, _, place = result.stderr.strip().partition("\nCommand failed -:")
    line = script[int(place) - 1] if place.isdecimal() else "; ".join(script)
    raise NetworkError(f"`{tool} {line}` failed: {complaint.splitlines()[-1] if complaint else result.returncode}")


def exists(name: str) -> int | None:
    """Return the index of the interface of this name in this namespace, None when there is none."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return None


def delete(names: Iterable[str]) -> None:
    """Delete interfaces; an interface that is gone already is no error."""
    present = [f"link del dev {name}" for name in names if exists(name) is not None]
    if present:
        result = subprocess.run(
            ["ip", "-force", "-batch", "-"], input="\n".join(present), capture_output=True, text=True, check=False
        )
        left = [line.rsplit(" ", 1)[1] for line in present if exists(line.rsplit(" ", 1)[1]) is not None]
        if left:
            raise NetworkError(f"interfaces {', '.join(left)} cannot be deleted: {result.stderr.strip()}")


def routes() -> list[tuple[str, str]]:
    """Return (destination, device) of every IPv4 route of this namespace, except default routes."""
    found = _show("-4", "route", "show")
    return [(route["dst"], route.get("dev", "?")) for route in found if route["dst"] != "default"]


def route_mtu(address: str) -> int:
    """Return the MTU of the interface through which this machine reaches an address."""
    device = _show("route", "get", address)[0]["dev"]
    return int(_show("link", "show", device)[0]["mtu"])


def address_mtu(address: str) -> int:
    """Return the MTU of the interface that has an address."""
    for interface in _show("-4", "address"):
        if any(entry.get("local") == address for entry in interface["addr_info"]):
            return int(interface["mtu"])
    raise NetworkError(f"an interface of this machine must have the address {address}")


def _show(*words: str) -> list[dict[str, Any]]:
    """Return what an `ip` command shows."""
    result = subprocess.run(["ip", "-json", *words], capture_output=True, text=True, check=False)
    if result.returncode:
        raise NetworkError(f"`ip -json {' '.join(words)}` failed: {result.stderr.strip()}")
    return json.loads(result.stdout or "[]")  # type: ignore[no-any-return]  # as ip prints it


def burst_bytes(mbps: float, mtu: int) -> int:
    """Return the bucket size of a shaped link: two milliseconds at its rate, and never less than four frames.

    A smaller bucket loses rate whenever the kernel is late to refill it; a larger bucket lets bursts pass unshaped.
    """
    return max(int(mbps * 1e6 / 8 * 2e-3), 4 * (mtu + FRAME_HEADER))


def queue_bytes(mbps: float) -> int:
    """Return how much waits at most in a shaped link: 200 ms at its rate, and 1 MiB or more."""
    return max(1 << 20, int(mbps * 1e6 / 8 * QUEUE_S))


def shape_command(name: str, mbps: float, mtu: int) -> str:
    """Return the `tc` command that limits the rate at which packets leave an interface.

    If the interface has such a limit, the limit changes and the queue stays. The kernel segments a coalesced packet
    that is larger than the bucket.
    """
    limit = f"rate {mbps * 1e6:.0f}bit burst {burst_bytes(mbps, mtu)}b limit {queue_bytes(mbps)}b"
    return f"qdisc replace dev {name} root handle 5: tbf {limit}"


def unshape(name: str) -> None:
    """Remove the limit of an interface, if there is a limit."""
    subprocess.run(["tc", "qdisc", "del", "dev", name, "root"], capture_output=True, check=False)


def disable_offloads(name: str, *, coalesced: bool = False) -> None:
    """Turn off every offload that would change packets on the link; NetworkError names an offload that stays on.

    With `coalesced`, coalesced UDP datagrams may cross the link.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for offload, command in OFFLOADS.items():
            if coalesced and offload in NEEDED:
                continue
            _ethtool(control, name, command, 0)
            if _ethtool(control, name, command - 1, 0):
                raise NetworkError(f"interface {name}: {offload} offload must be off, but cannot be turned off")


def _ethtool(control: socket.socket, name: str, command: int, value: int) -> int:
    """Make one ETHTOOL_G... or ETHTOOL_S... request, which has one value."""
    request = ctypes.create_string_buffer(struct.pack("=II", command, value))
    interface = struct.pack("16sQ", name.encode(), ctypes.addressof(request))
    try:
        fcntl.ioctl(control, SIOCETHTOOL, interface)
    except OSError as error:
        raise NetworkError(f"interface {name}: ethtool request {command:#x}: {error.strerror}") from error
    return int(struct.unpack("=II", request.raw[:8])[1])


def disable_ipv6(name: str) -> None:
    """Disable IPv6 addresses, router and neighbour discovery, so that only the hosts' own packets cross the link."""
    setting = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    if not setting.exists():
        return  # a kernel without IPv6 has nothing to disable
    try:
        setting.write_text("1\n")
    except OSError as error:
        message = f"{setting}: {error.strerror}: /proc/sys must be writable, in a container that takes --privileged"
        raise NetworkError(message) from error
