"""The part of a network that is on one machine, and the links between machines.

A link has two ends. If both ends are on this machine, the link is a veth pair. If one end is, the link is a VXLAN
tunnel to the other end's machine, and this machine makes the near end:

    machine 192.0.2.11                                      machine 192.0.2.1
      h1-eth0 in host h1  --- UDP port 19277, VXLAN id N --->  s1-eth1 of the switch

Everything else, addresses, rates, names, is the same for both. Each link of a network has another VXLAN id, and each
network has another first id, so that packets of one network never reach another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from namespaces import Namespace
from topology import Topology

TUNNEL_PORT = 19277
"""The UDP port of tunnels, the same as that of `kofn switch --tunnels`."""

UPLINKS, MANAGEMENT = 1100, 1200
"""The numbers of a network's links begin at 0 for the hosts' data links, and here for links between switches and for
links of the management network. A network has at most 1024 hosts and 16 leaves, so less than 2300 links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkInterface:
    """An end of a link: its node in the topology, its interface, and its namespace (None: the root namespace)."""

    node: str
    interface: str
    namespace: Namespace | None = None
    mac: str = ""

    def words(self, mtu: int) -> str:
        """Return what `ip link add` needs to know of this end."""
        mac = f" address {self.mac}" if self.mac else ""
        namespace = f" netns {self.namespace.path}" if self.namespace else ""
        return f"name {self.interface}{mac} mtu {mtu}{namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPart:
    """The nodes of a network that are on this machine: all but those in `elsewhere`."""

    address: str = ""
    """This machine's address, the near end of its tunnels."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """By host or switch on another machine: the address of that machine."""
    first_id: int = 0
    """The VXLAN id of the network's link number 0."""

    def has(self, node: str) -> bool:
        """Return whether a host or switch is on this machine."""
        return node not in self.elsewhere

    def link(self, number: int, one: LinkInterface, other: LinkInterface, mtu: int) -> list[str]:
        """Return the `ip` command, to be run in the root namespace, that makes the ends of a link on this machine."""
        if self.has(one.node) and self.has(other.node):
            return [f"link add {one.words(mtu)} type veth peer {other.words(mtu)}"]
        return [
            f"link add {near.words(mtu)} type vxlan id {self.first_id + number} local {self.address} "
            f"remote {self.elsewhere[far.node]} dstport {TUNNEL_PORT} nolearning"
            for near, far in ((one, other), (other, one))
            if self.has(near.node) and not self.has(far.node)
        ]

    def data_links(self, topology: Topology, namespaces: Mapping[str, Namespace], mtu: int) -> Iterator[str]:
        """Yield the `ip` commands for all links of the data network; `namespaces` are those of hosts on this
        machine."""
        for number, host in enumerate(topology.hosts):
            port = LinkInterface(node=host.place.switch, interface=topology.interface(host.place))
            inside = namespaces.get(host.name)
            end = LinkInterface(node=host.name, interface=host.interface, namespace=inside, mac=host.mac)
            yield from self.link(number, port, end, mtu)
        for number, uplink in enumerate(topology.uplinks, UPLINKS):
            leaf = LinkInterface(node=uplink.leaf.switch, interface=topology.interface(uplink.leaf))
            root = LinkInterface(node=uplink.root.switch, interface=topology.interface(uplink.root))
            yield from self.link(number, leaf, root, mtu)

    def shaped_ports(self, topology: Topology) -> list[tuple[str, float]]:
        """Return the shaped interfaces of switches on this machine, with their rates in Mbit/s."""
        ends = [(host.place, host.mbps) for host in topology.hosts]
        ends += [(end, link.mbps) for link in topology.uplinks for end in (link.leaf, link.root)]
        return [(topology.interface(place), mbps) for place, mbps in ends if mbps and self.has(place.switch)]
