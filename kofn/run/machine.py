"""This machine's end of a job's data network on real machines: interfaces, addresses, command lines.

    worker r                                                     switch
    kofn-wr 10.0.0.(r+1) - any network: UDP port 19277, VXLAN --> kofn(r+1), a port of the switch
    eth1  10.0.0.(r+1) -- a separate cable --------------------> eth(r+1)

The switch learns a worker's address from the worker's first packet, so workers may start, move and return in any order.
In a tree the same holds between a leaf, whose end is kofn-up, and the root's port kofn-leaf(rack).
This module knows only the switch and the controller of other machines.
"""

import json
import socket
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

import msgspec

from kofn.run.errors import RunError
from kofn.run.topology import wanted_topology
from kofn_common.config.job import JobSection
from kofn_common.config.schema import Config
from kofn_common.wire.packet import HEADER_BYTES, MEMBERS_BYTES, SERVICE, WORD_BYTES
from kofn_common.wire.sizes import RACK_WORKERS_MAX, WORKERS_MAX

SERVICE_MAC = "02:6b:6f:66:6e:fe"
ECHO_ADDRESS = "10.0.0.253"
"""`kofn doctor --remote` pings this address; the kernel of the switch's machine answers in each tunnel.

A tunnel's end at the switch cannot broadcast. It learns a worker's address from the ARP request that precedes a ping.
"""

TUNNEL_PORT = 19277
TUNNEL_BYTES = 50
"""The overhead of a frame in a tunnel: Ethernet, IPv4, UDP and VXLAN headers."""

UPLINK_ID = WORKERS_MAX + 1
"""The VXLAN id of rack 0's uplink; a worker's id is 1 + its rank."""

PORT_MTU = 9000
"""The MTU of the switch's tunnels: the switch sends packets as large as those that it receives."""

UDP_BYTES = 28
"""IPv4 and UDP headers of a kofn packet."""

ROOT_NEEDED = "root or the capability NET_ADMIN must be there to make an interface"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAddress:
    """A worker's address on the data network."""

    ip: IPv4Interface
    mac: str


def data_address(config: Config, source: Path, rank: int) -> DataAddress:
    """Return the address in the job's topology. Raise ConfigError if there is none."""
    hosts = json.loads(wanted_topology(config, source, hosts=config.job.workers))["hosts"]
    host = hosts[f"h{rank + 1}"]
    return DataAddress(ip=IPv4Interface(host["ip"]), mac=host["mac"])


def make_ports(workers: int, rack: int = 0) -> list[str]:
    """Make an interface of the switch for the tunnel of each worker in the rack; return their names, by rank."""
    names = [f"kofn{rack * workers + place}" for place in range(1, workers + 1)]
    for place, name in enumerate(names, 1):
        _make_port(name, rack * workers + place, f"address {SERVICE_MAC}")
        ip("address", "replace", ECHO_ADDRESS, "peer", f"10.0.{rack}.{place}", "dev", name)
    return names


def make_leaf_ports(racks: int) -> list[str]:
    """Make an interface of the root for each leaf's tunnel; return their names, by rack."""
    names = [f"kofn-leaf{rack}" for rack in range(racks)]
    for rack, name in enumerate(names):
        _make_port(name, UPLINK_ID + rack)
    return names


def _make_port(name: str, number: int, options: str = "") -> None:
    """Make the switch's end of a tunnel. The MAC of this end must differ from the MAC of the other end, because a port
    drops frames from its own MAC."""
    _make(name, f"{options} mtu {PORT_MTU} type vxlan id {number} dstport {TUNNEL_PORT} learning ageing 0")
    bring_up(name)


def make_tunnel(switch: str, rank: int) -> str:
    """Make a worker's interface to a switch anywhere in an IP network; return its name."""
    _make_tunnel(tunnel_name(rank), rank + 1, switch)
    return tunnel_name(rank)


def make_uplink(root: str, rack: int) -> str:
    """Make a leaf's interface to the root anywhere in an IP network; return its name."""
    _make_tunnel("kofn-up", UPLINK_ID + rack, root)
    bring_up("kofn-up")
    return "kofn-up"


def _make_tunnel(name: str, number: int, switch: str) -> None:
    address, _, mtu = way(switch)
    options = f"id {number} remote {address} dstport {TUNNEL_PORT} nolearning"
    _make(name, f"mtu {mtu - TUNNEL_BYTES} type vxlan {options}")


def tunnel_name(rank: int) -> str:
    return f"kofn-w{rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """A tunnel for checks: the worker's tunnel if there is one, else a temporary tunnel, which does not fragment
    packets."""

    interface: str
    made: bool

    @classmethod
    def to(cls, switch: str, rank: int, address: DataAddress) -> "Tunnel":
        name = tunnel_name(rank)
        there = subprocess.run(["ip", "link", "show", name], capture_output=True, check=False).returncode == 0
        if not there:
            peer, _, mtu = way(switch)
            options = f"id {rank + 1} remote {peer} dstport {TUNNEL_PORT} nolearning df set"
            _make(name, f"mtu {mtu - TUNNEL_BYTES} type vxlan {options}")
            configure(name, address)
        return cls(interface=name, made=not there)

    def close(self) -> None:
        """Remove the tunnel, unless a worker owns it."""
        if self.made:
            ip("link", "delete", self.interface)


def configure(interface: str, address: DataAddress) -> None:
    """Set a worker's address, and a permanent neighbour entry for the switch, because no machine answers ARP requests
    for the switch's address."""
    ip("link", "set", interface, "address", address.mac)
    bring_up(interface)
    ip("address", "replace", str(address.ip), "dev", interface)
    ip("neighbour", "replace", SERVICE, "lladdr", SERVICE_MAC, "nud", "permanent", "dev", interface)


def bring_up(interface: str) -> None:
    """Bring an interface up without an IPv6 address: the packets of IPv6's discovery would go to the switch."""
    there = Path(f"/proc/sys/net/ipv6/conf/{interface}").exists()  # missing below an MTU of 1280
    quiet = ["addrgenmode", "none"] if there else []
    ip("link", "set", interface, *quiet, "up")


def check_mtu(interface: str, job: JobSection) -> int:
    """Return the interface's MTU. Raise RunError if a packet of the job does not fit."""
    there = _link(interface).mtu
    needed = packet_bytes(job)
    if needed > there:
        fitting = job.words - -(-(needed - there) // WORD_BYTES)
        able = f"job.words up to {fitting} fit" if fitting > 0 else "no packet fits"
        raise RunError(f"{interface} has MTU {there}, job.words = {job.words} needs {needed}: {able}")
    return there


def packet_bytes(job: JobSection) -> int:
    """Return the size of a job's largest packet, IP header included: a tree's results name the members of all racks."""
    bitmaps = job.racks if job.racks > 1 else 0
    return UDP_BYTES + HEADER_BYTES + bitmaps * MEMBERS_BYTES + job.words * WORD_BYTES


def own_address(peer: str) -> str:
    """Return the address from which this machine reaches HOST:PORT. Raise RunError without a route."""
    host, _, port = peer.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))
        except (OSError, ValueError) as error:
            raise RunError(f"{peer} must be a HOST:PORT that this machine can reach: {error}") from error
        return str(probe.getsockname()[0])


class _NetDevice(msgspec.Struct):
    """An interface or a route as `ip -json` prints it."""

    ifname: str = ""
    dev: str = ""
    mtu: int = 0


def way(host: str) -> tuple[str, str, int]:
    """Return a host's address, the interface that leads there, and the interface's MTU. Raise RunError if the host has
    no address, or no route leads there."""
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise RunError(f"--switch {host}: {error.strerror or error}") from error
    route = msgspec.json.decode(ip("-json", "route", "get", address), type=list[_NetDevice])[0]
    return address, route.dev, _link(route.dev).mtu


def _link(interface: str) -> _NetDevice:
    return msgspec.json.decode(ip("-json", "link", "show", interface), type=list[_NetDevice])[0]


def _make(name: str, options: str) -> None:
    """Make an interface; replace an interface of this name that an earlier process has left."""
    subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    ip("link", "add", name, *options.split())


def ip(*arguments: str) -> str:
    """Return the output of iproute2. If iproute2 fails, raise RunError with its message."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise RunError("the command 'ip' is missing: install the package iproute2") from error
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip() or f"exit code {error.returncode}"
        hint = f" ({ROOT_NEEDED})" if "not permitted" in words else ""
        raise RunError(f"ip {' '.join(arguments)}: {words}{hint}") from error
    return done.stdout


def check_ports(count: int) -> None:
    """Raise RunError unless a switch can have `count` ports: one for each worker, and at a leaf one for the uplink."""
    if not 1 <= count <= RACK_WORKERS_MAX + 1:
        raise RunError(f"ports must be 1 to {RACK_WORKERS_MAX + 1}, got {count}")
