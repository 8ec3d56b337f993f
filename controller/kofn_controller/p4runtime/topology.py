"""Reads the hosts and links of a topology.json of the p4lang tutorials' form: names, addresses and switch ports.

One switch has all hosts; or each rack's leaf switch has the rack's hosts, and one switch without hosts, the root, has a
link to each leaf. mininet/topology.py checks the whole file; this reader takes only the parts that table entries need.
"""

import ipaddress
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kofn_controller.errors import TopologyError

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_HOST = re.compile(r"h([1-9][0-9]*)")
_PORT = re.compile(r"(\w+)-p([1-9][0-9]*)")
_PORT_MAX = 510  # 511 is v1model's drop port


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyHost:
    """A host, and the port that leads to it in its switch. `rank` counts the topology's hosts h1, h2, ... from 0."""

    name: str
    rank: int
    mac: int
    ip: int
    port: int
    rack: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkPorts:
    """The link between a leaf and the root, by its port at each end."""

    leaf: int
    root: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMap:
    """The hosts in rank order, and each rack's uplink; a single switch has no uplinks."""

    hosts: tuple[TopologyHost, ...]
    uplinks: tuple[UplinkPorts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A port of a switch."""

    switch: str
    port: int


def read_topology(path: Path) -> PortMap:
    """Return the hosts and uplinks; TopologyError names the missing or wrong entry."""
    document = _load(path)
    hosts, links = document.get("hosts"), document.get("links")
    if not isinstance(hosts, dict) or not hosts:
        raise TopologyError(f"{path}: 'hosts' must be an object of h1, h2, ..., got {hosts!r}")
    if not isinstance(links, list):
        raise TopologyError(f"{path}: 'links' must be a list of [host, switch-pN], got {links!r}")
    places, between = _places(path, links)
    names = sorted(hosts, key=lambda name: _number(path, name))
    for name in names:
        if name not in places:
            raise TopologyError(f"{path}: host {name!r} must have a link to a switch, got none")
    leaves = list(dict.fromkeys(places[name].switch for name in names))
    return PortMap(
        hosts=tuple(_host(path, rank, name, hosts[name], places[name], leaves) for rank, name in enumerate(names)),
        uplinks=_uplinks(path, leaves, between),
    )


def _load(path: Path) -> dict[str, Any]:
    """Return the file's JSON object."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise TopologyError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise TopologyError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise TopologyError(f"{path}: must be an object with hosts, switches and links, got {type(document).__name__}")
    return document


def _number(path: Path, name: str) -> int:
    match = _HOST.fullmatch(name)
    if match is None:
        raise TopologyError(f"{path}: names of hosts must be h1, h2, ..., got {name!r}")
    return int(match[1])


def _places(path: Path, links: list[Any]) -> tuple[dict[str, _Place], list[tuple[_Place, _Place]]]:
    """Return the place of each linked host, and the links between switches; each link has its own ports."""
    places: dict[str, _Place] = {}
    between: list[tuple[_Place, _Place]] = []
    taken: set[_Place] = set()
    for link in links:
        names, ends = _link(path, link)
        for place in ends:
            if place in taken:
                raise TopologyError(
                    f"{path}: each link must have its own port, got port {place.port} of {place.switch} again in "
                    f"{link!r}"
                )
            taken.add(place)
        if not names:
            between.append((ends[0], ends[1]))
        elif names[0] in places:
            raise TopologyError(f"{path}: host {names[0]!r} must have one link, got two")
        else:
            places[names[0]] = ends[0]
    return places, between


def _link(path: Path, link: Any) -> tuple[list[str], list[_Place]]:
    """Return the host of a link, if it has one, and its places; the link may be written in either direction."""
    ends = [end for end in (link[:2] if isinstance(link, list) else []) if isinstance(end, str)]
    hosts = [end for end in ends if _HOST.fullmatch(end)]
    places = [_Place(switch=match[1], port=int(match[2])) for end in ends if (match := _PORT.fullmatch(end))]
    if len(hosts) + len(places) != 2 or not places:
        raise TopologyError(
            f"{path}: a link must be [host, switch-pN] or [switch-pN, switch-pN], such as ['h1', 's1-p1'], got {link!r}"
        )
    for place in places:
        if place.port > _PORT_MAX:
            raise TopologyError(f"{path}: a port must be 1 to {_PORT_MAX}, got {place.port} in {link!r}")
    return hosts, places


def _uplinks(path: Path, leaves: list[str], between: list[tuple[_Place, _Place]]) -> tuple[UplinkPorts, ...]:
    """Return each leaf's uplink, all to one switch without hosts."""
    if len(leaves) == 1 and not between:
        return ()
    found: dict[str, UplinkPorts] = {}
    roots: set[str] = set()
    for first, second in between:
        leaf, root = (first, second) if first.switch in leaves else (second, first)
        if leaf.switch not in leaves or root.switch in leaves or leaf.switch in found:
            raise TopologyError(
                f"{path}: a link between switches must be the one link of a switch with hosts to the one without, got "
                f"{first.switch}-p{first.port} to {second.switch}-p{second.port}"
            )
        found[leaf.switch] = UplinkPorts(leaf=leaf.port, root=root.port)
        roots.add(root.switch)
    if len(roots) != 1 or len(found) != len(leaves):
        raise TopologyError(
            f"{path}: all hosts must be at one switch, or every switch with hosts must have one link to the same "
            f"switch without hosts, got hosts at {', '.join(leaves)} and links to {', '.join(sorted(roots)) or 'none'}"
        )
    return tuple(found[leaf] for leaf in leaves)


def _host(path: Path, rank: int, name: str, entry: Any, place: _Place, leaves: list[str]) -> TopologyHost:
    mac, ip = (str(entry.get(key)) for key in ("mac", "ip")) if isinstance(entry, dict) else ("", "")
    if _MAC.fullmatch(mac) is None:
        raise TopologyError(f"{path}: mac of host {name!r} must be six pairs of hex digits, got {mac!r}")
    try:
        address = ipaddress.IPv4Interface(ip)
    except ValueError as error:
        raise TopologyError(f"{path}: ip of host {name!r} must be an address like '10.0.0.1/24', got {ip!r}") from error
    return TopologyHost(
        name=name,
        rank=rank,
        mac=int(mac.replace(":", ""), 16),
        ip=int(address.ip),
        port=place.port,
        rack=leaves.index(place.switch),
    )
