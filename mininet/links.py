"""The links of a topology.json: each host's to its switch, and in a tree each leaf's to the root."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from errors import NetworkError

PORTS_MAX = 64
"""A member bitmap has 64 bits, so a switch has at most 64 hosts, on ports 1 to 64; an uplink may be on port 65."""

RATE_MBPS = (0.1, 100_000.0)
"""The least and the largest bandwidth that tbf can keep, in Mbit/s. Below 0.1, one 9000-byte frame takes a second;
above 100,000, a veth is slower."""


class TopologyError(NetworkError):
    """A topology that cannot be built; the message names the field, the condition and the value found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPort:
    """A port of a switch."""

    switch: str
    port: int

    def __str__(self) -> str:
        return f"{self.switch}-p{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLink:
    """A host's link, as the topology file describes it."""

    place: SwitchPort
    mbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLink:
    """A leaf's link to the root."""

    leaf: SwitchPort
    root: SwitchPort
    mbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """All links of a topology file."""

    hosts: dict[str, AccessLink] = field(default_factory=dict)
    switches: list[tuple[SwitchPort, SwitchPort, float | None]] = field(default_factory=list)
    taken: dict[SwitchPort, str] = field(default_factory=dict)

    def take(self, place: SwitchPort, name: str, where: str) -> None:
        """Record which host or switch port is at the other end of a port's link."""
        if place in self.taken:
            raise TopologyError(
                f"a port must have one link, got two on {place}: {where} ({name}) and {self.taken[place]}"
            )
        self.taken[place] = name

    def leaves(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the switches with hosts, by rack. Each of them has equally many consecutive hosts."""
        switches = [self.hosts[name].place.switch for name in hosts]
        leaves = tuple(dict.fromkeys(switches))
        each, rest = divmod(len(hosts), len(leaves))
        if rest or switches != [leaf for leaf in leaves for _ in range(each)]:
            found = ", ".join(f"{switches.count(leaf)} of {leaf}" for leaf in leaves)
            raise TopologyError(f"hosts must be listed leaf by leaf, equally many of each, got {found}")
        return leaves

    def root(self, leaves: Sequence[str]) -> tuple[str, ...]:
        """Return the switch without hosts to which the leaves' uplinks lead; none if there are no uplinks."""
        roots = tuple(
            dict.fromkeys(end.switch for link in self.switches for end in link[:2] if end.switch not in leaves)
        )
        if len(roots) > 1:
            raise TopologyError(f"links must lead from all leaves to one root, got {', '.join(roots)}")
        return roots

    def between(self, leaves: Sequence[str]) -> tuple[RootLink, ...]:
        """Return each leaf's link to the root; none for a single switch."""
        if len(leaves) == 1 and not self.switches:
            return ()
        found = {}
        for first, second, mbps in self.switches:
            leaf, root = (first, second) if first.switch in leaves else (second, first)
            if leaf.switch not in leaves or root.switch in leaves or leaf.switch in found:
                raise TopologyError(
                    f"a link between switches must be a leaf's only one to the root, got {first} to {second}"
                )
            found[leaf.switch] = RootLink(leaf=leaf, root=root, mbps=mbps)
        for name in leaves:
            if name not in found:
                raise TopologyError(f"switch {name} must have a link to the root, got none")
        return tuple(found[name] for name in leaves)


def read_links(value: Any, hosts: Sequence[str], switches: Sequence[str]) -> Links:
    """Check the file's list of links; TopologyError names the wrong link."""
    if not isinstance(value, list):
        raise TopologyError(f"links must be a list, got {value!r}")
    found = Links()
    for index, entry in enumerate(value):
        _read(entry, f"links[{index}]", found, hosts, switches)
    for host in hosts:
        if host not in found.hosts:
            raise TopologyError(f"hosts.{host} must have a link to {_one_of(switches)}, got none")
    linked = {place.switch for place in found.taken}
    for switch in switches:
        if switch not in linked:
            raise TopologyError(f"switch {switch} must have a link, got none")
    return found


def _read(entry: Any, where: str, found: Links, hosts: Sequence[str], switches: Sequence[str]) -> None:
    """Add a link to the links that were found."""
    if not isinstance(entry, list) or not 2 <= len(entry) <= 4 or not all(isinstance(end, str) for end in entry[:2]):
        raise TopologyError(f'{where} must be ["host", "{switches[0]}-pN", latency, Mbit/s], got {entry!r}')
    _no_latency(entry[2] if len(entry) > 2 else None, where, entry)
    mbps = check_rate(entry[3] if len(entry) > 3 else None, f"{where} bandwidth")
    if len(switches) > 1 and all("-p" in end for end in entry[:2]):
        one, other = (_place(end, where, switches, PORTS_MAX + 1) for end in entry[:2])
        found.take(one, str(other), where)
        found.take(other, str(one), where)
        found.switches.append((one, other, mbps))
        return
    host, end = entry[:2] if "-p" in entry[1] else entry[1::-1]
    place = _place(end, where, switches, PORTS_MAX)
    if host not in hosts:
        raise TopologyError(f"{where} must have a host ({', '.join(hosts)}), got {host!r}")
    if host in found.hosts:
        raise TopologyError(f"a host must have one link, got a second of {host} in {where}")
    found.take(place, host, where)
    found.hosts[host] = AccessLink(place=place, mbps=mbps)


def _place(end: str, where: str, switches: Sequence[str], most: int) -> SwitchPort:
    name, _, port = end.rpartition("-p")
    if name not in switches:
        raise TopologyError(
            f"{where} must have a port of a switch at one end, {_one_of(switches)}-p1 for example, got {end!r}"
        )
    if not port.isdecimal() or not 1 <= int(port) <= most:
        raise TopologyError(f"{where} must have a port 1 to {most} of {name}, got {port!r}")
    return SwitchPort(switch=name, port=int(port))


def _one_of(switches: Sequence[str]) -> str:
    return switches[0] if len(switches) == 1 else f"one of {', '.join(switches)}"


def _no_latency(value: Any, where: str, entry: list[str]) -> None:
    """Refuse a latency: common kernels lack netem, and a link that silently had no delay would mislead."""
    if value is not None and value not in (0, "0", "0ms"):
        raise TopologyError(
            f"{where} ({entry[0]}) must have latency 0, got {value!r}: links cannot delay; "
            "a slow worker is configured as a straggler of the run"
        )


def check_rate(value: Any, field: str) -> float | None:
    """Return a bandwidth in Mbit/s, None for a link that is not shaped; TopologyError names the field."""
    if value is None:
        return None
    low, high = RATE_MBPS
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise TopologyError(
            f"{field} must be {low} to {high:.0f} Mbit/s, or null for a link that is not shaped, got {value!r}"
        )
    return float(value)
