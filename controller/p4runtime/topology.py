"""The hosts of a topology.json in p4lang tutorials' form: who they are and which switch port each one is at.

The file's full check is mininet/topology.py's; this reader takes only what table entries need.
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
    """A host and its place: `rank` counts the topology's hosts h1, h2, ... from 0."""

    name: str
    rank: int
    mac: int
    ip: int
    port: int


def read_hosts(path: Path) -> tuple[TopologyHost, ...]:
    """Return the hosts in rank order; TopologyError names what is missing or wrong."""
    document = _load(path)
    hosts, links = document.get("hosts"), document.get("links")
    if not isinstance(hosts, dict) or not hosts:
        raise TopologyError(f"{path}: 'hosts' is missing or empty: an object of h1, h2, ... is expected")
    if not isinstance(links, list):
        raise TopologyError(f"{path}: 'links' is missing: a list of [host, switch-pN] is expected")
    ports = _ports(path, links)
    names = sorted(hosts, key=lambda name: _number(path, name))
    return tuple(_host(path, rank, name, hosts[name], ports) for rank, name in enumerate(names))


def _load(path: Path) -> dict[str, Any]:
    """The file as a JSON object."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise TopologyError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise TopologyError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise TopologyError(f"{path}: an object with hosts, switches and links is expected")
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
            raise TopologyError(f"{path}: link {link!r}: port {port} of {switch} is taken")
        ports[name] = port
        switches.add(switch)
    if len(switches) > 1:
        raise TopologyError(f"{path}: hosts are at the switches {', '.join(sorted(switches))}: one switch is supported")
    return ports


def _link(path: Path, link: Any) -> tuple[str, str, int]:
    """(host, switch, port) of a link written in either direction."""
    ends = link[:2] if isinstance(link, list) else []
    hosts = [end for end in ends if isinstance(end, str) and _HOST.fullmatch(end)]
    places = [place for end in ends if isinstance(end, str) and (place := _PORT.fullmatch(end))]
    if len(hosts) != 1 or len(places) != 1:
        raise TopologyError(f"{path}: link {link!r}: [host, switch-pN] is expected, as in ['h1', 's1-p1']")
    port = int(places[0][2])
    if port > _PORT_MAX:
        raise TopologyError(f"{path}: link {link!r}: the port must be 1 to {_PORT_MAX}")
    return hosts[0], places[0][1], port


def _host(path: Path, rank: int, name: str, entry: Any, ports: dict[str, int]) -> TopologyHost:
    if name not in ports:
        raise TopologyError(f"{path}: host {name!r} has no link to a switch")
    mac, ip = (str(entry.get(key)) for key in ("mac", "ip")) if isinstance(entry, dict) else ("", "")
    if _MAC.fullmatch(mac) is None:
        raise TopologyError(f"{path}: host {name!r}: mac {mac!r}: six pairs of hex digits are expected")
    try:
        address = ipaddress.IPv4Interface(ip)
    except ValueError as error:
        raise TopologyError(f"{path}: host {name!r}: ip {ip!r}: an address like '10.0.0.1/24' is expected") from error
    return TopologyHost(name=name, rank=rank, mac=int(mac.replace(":", ""), 16), ip=int(address.ip), port=ports[name])
