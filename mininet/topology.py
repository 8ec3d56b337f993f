"""The network as data: hosts, one switch, links, read from topology.json or made as a star.

The file has the form of the p4lang tutorials, which users know:

    {"hosts":    {"h1": {"ip": "10.0.0.1/24", "mac": "08:00:00:00:00:01", "commands": []}},
     "switches": {"s1": {}},
     "links":    [["h1", "s1-p1", 0, 200]]}

A link is host and switch port in either order, then a latency (only 0: nothing here can delay) and a bandwidth in
Mbit/s (left out or null: not shaped).  A host's rank is its place in "hosts".  This module only reads and checks; it
must not know processes, namespaces or interfaces of this machine.
"""

import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

from errors import NetworkError

PORTS_MAX = 64
"""A result's member bitmap has 64 bits, so there are at most 64 hosts, on ports 1 to 64."""

SERVICE_IP = IPv4Address("10.0.0.254")
SERVICE_MAC = "02:6b:6f:66:6e:fe"
"""Destination of contributions: no machine has this address, and the switch's program consumes packets to it."""

RATE_MBPS = (0.1, 100_000.0)
"""Bandwidths that htb can hold to: below, one 9000-byte frame lasts a second; above, a veth is slower anyway."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,8}")
"""Nine letters at most: Linux interface names have 15, and '-eth64' needs six of them."""

MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class TopologyError(NetworkError):
    """A topology that cannot be built; the message names the field, what must hold and what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One worker's machine and its link."""

    name: str
    ip: IPv4Interface
    mac: str
    port: int
    """The switch's port, 1 to 64."""
    mbps: float | None
    """The link's rate in Mbit/s in each direction; None: not shaped."""
    commands: tuple[str, ...] = ()
    """Shell commands that are run in the host once it is configured."""

    @property
    def interface(self) -> str:
        """The host's end of its link."""
        return f"{self.name}-eth0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts in rank order around one switch."""

    hosts: tuple[Host, ...]
    switch: str
    suffix: str = ""
    """Suffix of interfaces in the switch's namespace, if another network has the names without one."""

    def switch_interface(self, host: Host) -> str:
        """The switch's end of a host's link."""
        return f"{self.switch}-eth{host.port}{self.suffix}"

    def to_json(self) -> str:
        """The file that load() reads back as an equal topology."""
        hosts = {
            host.name: {"ip": str(host.ip), "mac": host.mac, "commands": list(host.commands)} for host in self.hosts
        }
        links = [[host.name, f"{self.switch}-p{host.port}", 0, host.mbps] for host in self.hosts]
        return json.dumps({"hosts": hosts, "switches": {self.switch: {}}, "links": links}, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """A link as the file gives it."""

    host: str
    port: int
    mbps: float | None


def star(hosts: int, mbps: float | None) -> Topology:
    """Hosts h1 to hN on ports 1 to N of the switch s1, every link at `mbps` (None: not shaped)."""
    if not 1 <= hosts <= PORTS_MAX:
        raise TopologyError(f"--hosts must be 1 to {PORTS_MAX}, got {hosts}")
    rate = check_rate(mbps, "--mbps")
    made = tuple(
        Host(name=f"h{rank + 1}", ip=IPv4Interface(f"10.0.0.{rank + 1}/24"), mac=_mac(rank), port=rank + 1, mbps=rate)
        for rank in range(hosts)
    )
    return Topology(hosts=made, switch="s1")


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
        raise TopologyError(f"{missing[0]} is missing: hosts, switches and links are needed")
    switch = _switch(table["switches"])
    links = _links(table["links"], _names(table["hosts"], switch), switch)
    hosts = tuple(_host(name, rank, table["hosts"][name], links[name]) for rank, name in enumerate(table["hosts"]))
    _unique(hosts)
    return Topology(hosts=hosts, switch=switch)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different: Python's reader would silently keep the last."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise TopologyError(f"a table must name {name!r} once, got two")
    return dict(pairs)


def _table(value: Any, field: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TopologyError(f"{field} is {value!r}: a table is needed")
    for key in value:
        if key not in keys:
            raise TopologyError(f"keys of {field} must be {', '.join(keys) or 'none'}, got {key!r}")
    return value


def _name(name: str, field: str) -> str:
    if name == "root" or not NAME.fullmatch(name):
        raise TopologyError(f"{field} has {name!r}: a letter and up to 8 letters, digits or '_', and not 'root'")
    return name


def _switch(value: Any) -> str:
    if not isinstance(value, dict) or len(value) != 1:
        count = len(value) if isinstance(value, dict) else repr(value)
        raise TopologyError(f"switches must have exactly one switch, got {count}")
    name = _name(next(iter(value)), "switches")
    _table(value[name], f"switches.{name}", ())
    return name


def _names(value: Any, switch: str) -> tuple[str, ...]:
    if not isinstance(value, dict) or not 1 <= len(value) <= PORTS_MAX:
        count = len(value) if isinstance(value, dict) else repr(value)
        raise TopologyError(f"hosts must have 1 to {PORTS_MAX} hosts, got {count}")
    if switch in value:
        raise TopologyError(f"hosts has {switch!r}, which is the switch: another name is needed")
    return tuple(_name(name, "hosts") for name in value)


def _links(value: Any, hosts: tuple[str, ...], switch: str) -> dict[str, _Link]:
    if not isinstance(value, list):
        raise TopologyError(f"links is {value!r}: a list is needed")
    found: dict[str, _Link] = {}
    ports: dict[int, str] = {}
    for index, entry in enumerate(value):
        link = _link(entry, f"links[{index}]", hosts, switch)
        if link.host in found:
            raise TopologyError(f"a host must have one link, got a second of {link.host} in links[{index}]")
        if link.port in ports:
            raise TopologyError(
                f"a port must have one link, got two on {switch}-p{link.port}: "
                f"links[{index}] ({link.host}) and {ports[link.port]}"
            )
        found[link.host] = link
        ports[link.port] = link.host
    for host in hosts:
        if host not in found:
            raise TopologyError(f"hosts.{host} has no link: one to {switch} is needed")
    return found


def _link(entry: Any, field: str, hosts: tuple[str, ...], switch: str) -> _Link:
    if not isinstance(entry, list) or not 2 <= len(entry) <= 4 or not all(isinstance(end, str) for end in entry[:2]):
        raise TopologyError(f'{field} must be ["host", "{switch}-pN", latency, Mbit/s], got {entry!r}')
    ends = entry[:2] if "-p" in entry[1] else entry[1::-1]
    host, (name, _, port) = ends[0], ends[1].rpartition("-p")
    if name != switch:
        raise TopologyError(f"{field} has {ends[1]!r}: one end must be a port of the switch, {switch}-p1 for example")
    if host not in hosts:
        raise TopologyError(f"{field} has {host!r}: a host is needed there: {', '.join(hosts)}")
    if not port.isdecimal() or not 1 <= int(port) <= PORTS_MAX:
        raise TopologyError(f"{field} must have a port 1 to {PORTS_MAX} of {switch}, got {port!r}")
    _no_latency(entry[2] if len(entry) > 2 else None, field, host)
    return _Link(host=host, port=int(port), mbps=check_rate(entry[3] if len(entry) > 3 else None, f"{field} bandwidth"))


def _no_latency(value: Any, field: str, host: str) -> None:
    """Links cannot delay: netem is missing from common kernels, and silently no delay would be a lie."""
    if value is not None and value not in (0, "0", "0ms"):
        raise TopologyError(
            f"{field} ({host}) must have latency 0, got {value!r}: links cannot delay; "
            "a slow worker is configured as a straggler of the run"
        )


def check_rate(value: Any, field: str) -> float | None:
    """A bandwidth in Mbit/s, None for a link that is not shaped; TopologyError names the field."""
    if value is None:
        return None
    low, high = RATE_MBPS
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise TopologyError(f"{field} is {value!r}: {low} to {high:.0f} Mbit/s, or null for a link that is not shaped")
    return float(value)


def _host(name: str, rank: int, value: Any, link: _Link) -> Host:
    table = _table(value, f"hosts.{name}", ("ip", "mac", "commands"))
    commands = table.get("commands", [])
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise TopologyError(f"hosts.{name}.commands is {commands!r}: a list of shell commands is needed")
    return Host(
        name=name,
        ip=_address(table.get("ip"), f"hosts.{name}.ip"),
        mac=_unicast(table.get("mac", _mac(rank)), f"hosts.{name}.mac"),
        port=link.port,
        mbps=link.mbps,
        commands=tuple(commands),
    )


def _address(value: Any, field: str) -> IPv4Interface:
    if not isinstance(value, str) or "/" not in value:
        raise TopologyError(f"{field} is {value!r}: an IPv4 address with its prefix is needed, 10.0.0.1/24 for example")
    try:
        address = IPv4Interface(value)
    except ValueError as error:
        raise TopologyError(f"{field} is {value!r}: {error}") from error
    edges = (address.network.network_address, address.network.broadcast_address)
    if address.is_multicast or address.is_loopback or address.is_unspecified or address.is_reserved:
        raise TopologyError(f"{field} is {value!r}: an address that a host can have is needed")
    if address.network.prefixlen < 31 and address.ip in edges:
        raise TopologyError(f"{field} is {value!r}: the first and the last address of a network are not a host's")
    return address


def _unicast(value: Any, field: str) -> str:
    text = value.lower() if isinstance(value, str) else repr(value)
    if not MAC.fullmatch(text) or int(text[:2], 16) & 1 or text == "00:00:00:00:00:00":
        raise TopologyError(f"{field} is {value!r}: a unicast MAC address is needed, 08:00:00:00:00:01 for example")
    return text


def _mac(rank: int) -> str:
    return f"08:00:00:00:00:{rank + 1:02x}"


def _unique(hosts: tuple[Host, ...]) -> None:
    """No address twice, and none that is the aggregation service's."""
    addresses = {str(SERVICE_IP): "the aggregation service"}
    macs = {SERVICE_MAC: "the aggregation service"}
    for host in hosts:
        for kind, value, taken in (("ip", str(host.ip.ip), addresses), ("mac", host.mac, macs)):
            if value in taken:
                raise TopologyError(f"hosts.{host.name}.{kind} {value} is taken by {taken[value]}: another is needed")
            taken[value] = host.name
