"""Reads the hosts of a topology.json of the p4lang tutorials' form: names, addresses and switch ports.

mininet/topology.py checks the whole file; this reader takes only the parts that table entries need.
"""

import ipaddress
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kofn.controller.errors import TopologyError

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_HOST = re.compile(r"h([1-9][0-9]*)")
_PORT = re.compile(r"(\w+)-p([1-9][0-9]*)")
_PORT_MAX = 510  # 511 is v1model's drop port


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyHost:
    """A host and its switch port. `rank` counts the topology's hosts h1, h2, ... from 0."""

    name: str
    rank: int
    mac: int
    ip: int
    port: int


def read_hosts(path: Path) -> tuple[TopologyHost, ...]:
    """Return the hosts in rank order; TopologyError names the missing or wrong entry."""
    document = _load(path)
    hosts, links = document.get("hosts"), document.get("links")
    if not isinstance(hosts, dict) or not hosts:
        raise TopologyError(f"{path}: 'hosts' must be an object of h1, h2, ..., got {hosts!r}")
    if not isinstance(links, list):
        raise TopologyError(f"{path}: 'links' must be a list of [host, switch-pN], got {links!r}")
    ports = _ports(path, links)
    names = sorted(hosts, key=lambda name: _number(path, name))
    return tuple(_host(path, rank, name, hosts[name], ports) for rank, name in enumerate(names))


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


def _ports(path: Path, links: list[Any]) -> dict[str, int]:
    """Return the switch port of each linked host; all hosts must be on one switch, each on its own port."""
    ports: dict[str, int] = {}
    switches: set[str] = set()
    for link in links:
        name, switch, port = _link(path, link)
        if name in ports:
            raise TopologyError(f"{path}: host {name!r} must have one link, got two")
        if port in ports.values():
            raise TopologyError(
                f"{path}: each link must have its own port, got port {port} of {switch} again in {link!r}"
            )
        ports[name] = port
        switches.add(switch)
    if len(switches) > 1:
        raise TopologyError(f"{path}: all hosts must be at one switch, got {', '.join(sorted(switches))}")
    return ports


def _link(path: Path, link: Any) -> tuple[str, str, int]:
    """Return (host, switch, port) of a link, which may be written in either direction."""
    ends = link[:2] if isinstance(link, list) else []
    hosts = [end for end in ends if isinstance(end, str) and _HOST.fullmatch(end)]
    places = [place for end in ends if isinstance(end, str) and (place := _PORT.fullmatch(end))]
    if len(hosts) != 1 or len(places) != 1:
        raise TopologyError(f"{path}: a link must be [host, switch-pN], such as ['h1', 's1-p1'], got {link!r}")
    port = int(places[0][2])
    if port > _PORT_MAX:
        raise TopologyError(f"{path}: a port must be 1 to {_PORT_MAX}, got {port} in {link!r}")
    return hosts[0], places[0][1], port


def _host(path: Path, rank: int, name: str, entry: Any, ports: dict[str, int]) -> TopologyHost:
    if name not in ports:
        raise TopologyError(f"{path}: host {name!r} must have a link to a switch, got none")
    mac, ip = (str(entry.get(key)) for key in ("mac", "ip")) if isinstance(entry, dict) else ("", "")
    if _MAC.fullmatch(mac) is None:
        raise TopologyError(f"{path}: mac of host {name!r} must be six pairs of hex digits, got {mac!r}")
    try:
        address = ipaddress.IPv4Interface(ip)
    except ValueError as error:
        raise TopologyError(f"{path}: ip of host {name!r} must be an address like '10.0.0.1/24', got {ip!r}") from error
    return TopologyHost(name=name, rank=rank, mac=int(mac.replace(":", ""), 16), ip=int(address.ip), port=ports[name])
