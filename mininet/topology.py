"""The network as data: hosts, switches, links, read from topology.json or made as a star or a tree.

The file has the form of the p4lang tutorials, which users know:

    {"hosts":    {"h1": {"ip": "10.0.0.1/24", "mac": "08:00:00:00:00:01", "commands": []}},
     "switches": {"s1": {}},
     "links":    [["h1", "s1-p1", 0, 200]]}

A link is a host and a switch port in either order, then a latency and a bandwidth in Mbit/s. The latency must be 0,
because links cannot delay; a bandwidth of null, or none, means that the link is not shaped. A host's rank is its place
in "hosts". In a tree each rack's hosts are on a leaf switch. Every leaf has a link to the root, which is the one switch
without hosts (links.py). A link between switches is written as two switch ports. This module only reads and checks; it
must not know processes, namespaces or interfaces of this machine.
"""

import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

from links import PORTS_MAX, Links, RootLink, SwitchPort, TopologyError, check_rate, read_links

RACKS_MAX = 16
"""A result has at most 16 member bitmaps."""

SERVICE_IP = IPv4Address("10.0.0.254")
SERVICE_MAC = "02:6b:6f:66:6e:fe"
"""Destination of contributions: no machine has this address, and the switch's program consumes packets to it."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,8}")
"""A name has at most nine characters: Linux interface names have 15, and '-eth64' takes six of them."""

MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One worker's machine and its link."""

    name: str
    ip: IPv4Interface
    mac: str
    place: SwitchPort
    """The host's switch, and the port of the switch."""
    mbps: float | None
    """The link's rate in Mbit/s in each direction; None: not shaped."""
    commands: tuple[str, ...] = ()
    """Shell commands that are run in the host once it is configured."""

    @property
    def interface(self) -> str:
        """The interface at the host's end of its link."""
        return f"{self.name}-eth0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts in rank order around one switch, or around the leaves of a tree."""

    hosts: tuple[Host, ...]
    switches: tuple[str, ...]
    """The only switch; or the root and the leaves, by rack."""
    uplinks: tuple[RootLink, ...] = ()
    """Each leaf's link to the root, by rack."""
    suffix: str = ""
    """The suffix of interfaces in the switches' namespace, if another network has the names without a suffix."""

    def interface(self, place: SwitchPort) -> str:
        """Return the interface at a port of a switch."""
        return f"{place.switch}-eth{place.port}{self.suffix}"

    def ports(self, switch: str) -> dict[int, str]:
        """Return the interfaces of a switch, by port."""
        places = [host.place for host in self.hosts] + [end for link in self.uplinks for end in (link.leaf, link.root)]
        return {place.port: self.interface(place) for place in places if place.switch == switch}

    def uplink(self, switch: str) -> RootLink | None:
        """Return a leaf's link to the root; None for the only switch."""
        return next((link for link in self.uplinks if link.leaf.switch == switch), None)

    def to_json(self) -> str:
        """Return the text of a file that load() reads as an equal topology."""
        hosts = {
            host.name: {"ip": str(host.ip), "mac": host.mac, "commands": list(host.commands)} for host in self.hosts
        }
        links = [[host.name, str(host.place), 0, host.mbps] for host in self.hosts]
        links += [[str(link.leaf), str(link.root), 0, link.mbps] for link in self.uplinks]
        return (
            json.dumps({"hosts": hosts, "switches": {name: {} for name in self.switches}, "links": links}, indent=2)
            + "\n"
        )


def star(hosts: int, mbps: float | None) -> Topology:
    """Return hosts h1 to hN on ports 1 to N of the switch s1, every link at `mbps` (None: not shaped)."""
    if not 1 <= hosts <= PORTS_MAX:
        raise TopologyError(f"--hosts must be 1 to {PORTS_MAX}, got {hosts}")
    rate = check_rate(mbps, "--mbps")
    made = tuple(_made(rank, 0, rank, prefix=24, mbps=rate) for rank in range(hosts))
    return Topology(hosts=made, switches=("s1",))


def tree(hosts: int, racks: int, mbps: float | None, uplink_mbps: float | None) -> Topology:
    """Return racks with the leaves s1, s2, ..., and the root s0. Each leaf has the same number of the hosts h1 to hN.

    A leaf's hosts are on its ports 1, 2, ..., and the root is on its next port. The leaves are on ports 1, 2, ... of
    the root.
    """
    if not 2 <= racks <= RACKS_MAX or hosts % racks or not 1 <= hosts // racks <= PORTS_MAX:
        raise TopologyError(
            f"--racks must be 2 to {RACKS_MAX}, and --hosts 1 to {PORTS_MAX} for each of them, got {racks} and {hosts}"
        )
    each, rate, uplink = hosts // racks, check_rate(mbps, "--mbps"), check_rate(uplink_mbps, "--uplink-mbps")
    made = [_made(rank, rank // each, rank % each, prefix=16, mbps=rate) for rank in range(hosts)]
    leaves = [f"s{rack + 1}" for rack in range(racks)]
    uplinks = [
        RootLink(leaf=SwitchPort(switch=leaf, port=each + 1), root=SwitchPort(switch="s0", port=rack + 1), mbps=uplink)
        for rack, leaf in enumerate(leaves)
    ]
    return Topology(hosts=tuple(made), switches=("s0", *leaves), uplinks=tuple(uplinks))


def _made(rank: int, rack: int, number: int, *, prefix: int, mbps: float | None) -> Host:
    """Return the host with this rank and this number in its rack."""
    return Host(
        name=f"h{rank + 1}",
        ip=IPv4Interface(f"10.0.{rack}.{number + 1}/{prefix}"),
        mac=_mac(rack, number + 1),
        place=SwitchPort(switch=f"s{rack + 1}", port=number + 1),
        mbps=mbps,
    )


def load(path: Path) -> Topology:
    """Read and check a topology.json; TopologyError names the file and the field."""
    try:
        return parse(json.loads(path.read_text(), object_pairs_hook=_once))
    except OSError as error:
        raise TopologyError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise TopologyError(f"{path}: not JSON: {error}") from error
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from error


def parse(document: Any) -> Topology:
    """Check a decoded topology.json; TopologyError names the field."""
    table = _table(document, "the topology", ("hosts", "switches", "links"))
    missing = [key for key in ("hosts", "switches", "links") if key not in table]
    if missing:
        raise TopologyError(f"the topology must have hosts, switches and links, got no {missing[0]}")
    switches = _switches(table["switches"])
    names = _names(table["hosts"], switches)
    links = read_links(table["links"], names, switches)
    hosts = tuple(_host(name, rank, table["hosts"][name], links) for rank, name in enumerate(names))
    _unique(hosts)
    leaves = links.leaves(names)
    return Topology(hosts=hosts, switches=(*links.root(leaves), *leaves), uplinks=links.between(leaves))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Refuse a key that is given twice, because Python's reader would silently keep the last."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise TopologyError(f"a table must name {name!r} once, got two")
    return dict(pairs)


def _table(value: Any, field: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TopologyError(f"{field} must be a table, got {value!r}")
    for key in value:
        if key not in keys:
            raise TopologyError(f"keys of {field} must be {', '.join(keys) or 'none'}, got {key!r}")
    return value


def _name(name: str, field: str) -> str:
    if name == "root" or not NAME.fullmatch(name):
        raise TopologyError(
            f"names of {field} must be a letter and up to 8 letters, digits or '_', and not 'root', got {name!r}"
        )
    return name


def _switches(value: Any) -> tuple[str, ...]:
    if not isinstance(value, dict) or not value or len(value) == 2 or len(value) > 1 + RACKS_MAX:
        count = len(value) if isinstance(value, dict) else repr(value)
        raise TopologyError(
            f"switches must have exactly one switch, or the root and 2 to {RACKS_MAX} leaves of a tree, got {count}"
        )
    for name in value:
        _table(value[_name(name, "switches")], f"switches.{name}", ())
    return tuple(value)


def _names(value: Any, switches: tuple[str, ...]) -> tuple[str, ...]:
    most = PORTS_MAX * max(1, len(switches) - 1)
    if not isinstance(value, dict) or not 1 <= len(value) <= most:
        count = len(value) if isinstance(value, dict) else repr(value)
        raise TopologyError(f"hosts must have 1 to {most} hosts, got {count}")
    for switch in switches:
        if switch in value:
            raise TopologyError(f"hosts must not have a switch's name, got {switch!r}")
    return tuple(_name(name, "hosts") for name in value)


def _host(name: str, rank: int, value: Any, links: Links) -> Host:
    table = _table(value, f"hosts.{name}", ("ip", "mac", "commands"))
    commands = table.get("commands", [])
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise TopologyError(f"hosts.{name}.commands must be a list of shell commands, got {commands!r}")
    return Host(
        name=name,
        ip=_address(table.get("ip"), f"hosts.{name}.ip"),
        mac=_unicast(table.get("mac", _mac(*divmod(rank + 1, 256))), f"hosts.{name}.mac"),
        place=links.hosts[name].place,
        mbps=links.hosts[name].mbps,
        commands=tuple(commands),
    )


def _address(value: Any, field: str) -> IPv4Interface:
    if not isinstance(value, str) or "/" not in value:
        raise TopologyError(f"{field} must be an IPv4 address with its prefix, 10.0.0.1/24 for example, got {value!r}")
    try:
        address = IPv4Interface(value)
    except ValueError as error:
        raise TopologyError(f"{field} is {value!r}: {error}") from error
    edges = (address.network.network_address, address.network.broadcast_address)
    if address.is_multicast or address.is_loopback or address.is_unspecified or address.is_reserved:
        raise TopologyError(f"{field} must be an address that a host can have, got {value!r}")
    if address.network.prefixlen < 31 and address.ip in edges:
        raise TopologyError(f"{field} must not be the first or last address of its network, got {value!r}")
    return address


def _unicast(value: Any, field: str) -> str:
    text = value.lower() if isinstance(value, str) else repr(value)
    if not MAC.fullmatch(text) or int(text[:2], 16) & 1 or text == "00:00:00:00:00:00":
        raise TopologyError(f"{field} must be a unicast MAC address, 08:00:00:00:00:01 for example, got {value!r}")
    return text


def _mac(high: int, low: int) -> str:
    return f"08:00:00:00:{high:02x}:{low:02x}"


def _unique(hosts: tuple[Host, ...]) -> None:
    """Refuse an address that two hosts have, or that is the aggregation service's."""
    addresses = {str(SERVICE_IP): "the aggregation service"}
    macs = {SERVICE_MAC: "the aggregation service"}
    for host in hosts:
        for kind, value, taken in (("ip", str(host.ip.ip), addresses), ("mac", host.mac, macs)):
            if value in taken:
                raise TopologyError(f"hosts.{host.name}.{kind} must be unique, got {value} of {taken[value]}")
            taken[value] = host.name
