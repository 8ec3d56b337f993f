"""The whole network: data links around the switches, and the management network.

    root namespace                          host h1
      s1-eth1  <---- shaped veth ---->        h1-eth0   10.0.0.1
      kofn-mgmt 172.30.255.1                  mgmt0     172.30.255.2
          |                                     |
          +---- bridge, in a separate namespace

The switch's program runs on s1-eth1...; in a tree, a leaf's link to the root is a veth pair in the root namespace, such
as s1-eth3 and s0-eth1.  gRPC between workers and controller takes the management network and never crosses a switch.
No bridge is in the root namespace, so no firewall rule of the machine applies to it.

A network may be on several machines. Then each machine makes its part (parts.py): the hosts and switches that are
there, and instead of a veth pair the near end of a VXLAN tunnel to the machine that has the other end of a link.
"""

import os
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network, ip_network
from typing import Any, Self

import drivers
import interfaces
import records
from errors import NetworkError
from namespaces import Namespace
from parts import MANAGEMENT, LinkInterface, NetworkPart
from topology import SERVICE_IP, SERVICE_MAC, Host, Topology

MANAGEMENT_ROOT = "kofn-mgmt"
MANAGEMENT_MAC = "02:6b:6f:66:6e:01"
"""A fixed MAC address. Otherwise udev would soon change the address, and hosts would still send to the old one."""
MANAGEMENT_HOST = "mgmt0"
MANAGEMENT_MTU = 1500
"""The largest MTU of the management network, that of Ethernet."""
COMMAND_S = 30.0
"""The longest time, in seconds, of a command that topology.json has for a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """The plan of a network."""

    topology: Topology
    driver: str
    management: IPv4Network
    mtu: int
    coalesced: bool = False
    """Whether coalesced UDP datagrams may cross the data links."""
    part: NetworkPart = field(default_factory=NetworkPart)
    """The part of the network that is on this machine: by default everything."""

    @classmethod
    def checked(
        cls, topology: Topology, *, driver: str, management: str, mtu: int, coalesced: bool, part: NetworkPart
    ) -> Self:
        """Return the plan. NetworkError names an option that is wrong by itself."""
        try:
            network = IPv4Network(management)
        except ValueError as error:
            raise NetworkError(f"--management is {management!r}: {error}") from error
        if not 1280 <= mtu <= 65535:
            raise NetworkError(f"--mtu must be 1280 to 65535, got {mtu}")
        return cls(topology=topology, driver=driver, management=network, mtu=mtu, coalesced=coalesced, part=part)

    @property
    def hosts(self) -> list[Host]:
        """The hosts on this machine."""
        return [host for host in self.topology.hosts if self.part.has(host.name)]

    @property
    def switches(self) -> list[str]:
        """The switches on this machine."""
        return [name for name in self.topology.switches if self.part.has(name)]

    @property
    def root(self) -> str:
        """The only switch, or a tree's root. The management network's bridge is on the machine of this switch."""
        return self.topology.switches[0]

    def management_address(self, rank: int) -> IPv4Address:
        """Return the address of a host by rank; -1 is the root namespace, which has the first address."""
        return self.management[rank + 2]


class Network:
    """A network that runs; `with Network(plan) as network` removes it again."""

    def __init__(self, plan: NetworkPlan) -> None:
        """Check the preconditions; nothing is made yet."""
        _preconditions(plan)
        self.plan = plan
        self.topology = plan.topology
        self.rates = {host.name: host.mbps for host in plan.topology.hosts}
        self._stack = ExitStack()

    def __enter__(self) -> "Network":
        """Make the whole network; after a failure no part of it is left."""
        with self._stack as stack:
            self._make(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make(self, stack: ExitStack) -> None:
        management = [MANAGEMENT_ROOT] if self.plan.part.has(self.plan.root) else []
        self.record = records.claim([*self._switch_interfaces(), *management])
        stack.callback(self.record.remove)
        self.topology = replace(self.topology, suffix=self.record.suffix)
        _check_routes(self.plan.management)
        self.root = Namespace.current()
        stack.callback(self.root.close)
        stack.callback(self.record.delete_interfaces)
        part = self.plan.part
        self._driver, self.reason = drivers.make(self.plan.driver, self.topology, self.plan.mtu, self.record, part)
        stack.callback(self._driver.close)
        for name in self._switch_interfaces():
            _plain(name, self.plan)
        for host in self.plan.hosts:
            with self.namespace(host.name).entered():
                self._configure(host)
        self._management(stack)
        self.record.network_made(self.describe()["hosts"])
        for host in self.plan.hosts:
            self._commands(host)

    def _switch_interfaces(self) -> list[str]:
        """Return all interfaces of this machine's switches, which are in the root namespace."""
        return [name for switch in self.plan.switches for name in self.topology.ports(switch).values()]

    def namespace(self, node: str) -> Namespace:
        """Return the namespace of a host by name; switches run in the root namespace."""
        if node in ("root", *self.plan.switches):
            return self.root
        if node not in self._driver.namespaces:
            allowed = ", ".join(["root", *self.plan.switches, *self._driver.namespaces])
            raise NetworkError(f"the node must be one of {allowed}, got {node!r}")
        return self._driver.namespaces[node]

    def _configure(self, host: Host) -> None:
        """Finish a host's data interface, from inside the host."""
        interfaces.ip(["link set lo up"])
        _plain(host.interface, self.plan)
        others = [other for other in self.topology.hosts if other is not host]
        peers = [(other.ip.ip, other.mac) for other in others] + [(SERVICE_IP, SERVICE_MAC)]
        interfaces.ip(
            [f"addr replace {host.ip} dev {host.interface}"]
            + [f"route replace {ip}/32 dev {host.interface}" for ip, _ in peers if ip not in host.ip.network]
            + [f"neigh replace {ip} lladdr {mac} nud permanent dev {host.interface}" for ip, mac in peers]
        )

    def _management(self, stack: ExitStack) -> None:
        """Make the second network: a bridge in its own namespace on the root's machine, and a link to it from each host
        and from the root namespace there."""
        plan, root = self.plan, self.plan.root
        bridge = None
        if plan.part.has(root):
            bridge = Namespace.create("management")
            stack.callback(bridge.close)
        ends = [LinkInterface(node=root, interface=self.management_interface, mac=MANAGEMENT_MAC)]
        for host in self.topology.hosts:
            ends.append(LinkInterface(node=host.name, interface=MANAGEMENT_HOST, namespace=self._inside(host.name)))
        ports = ["root", *(host.name for host in self.topology.hosts)]
        lines, mtu = [], min(MANAGEMENT_MTU, plan.mtu)
        for number, (port, end) in enumerate(zip(ports, ends, strict=True), MANAGEMENT):
            lines += plan.part.link(number, LinkInterface(node=root, interface=port, namespace=bridge), end, mtu)
        interfaces.ip(lines)
        if bridge is not None:
            with bridge.entered():
                interfaces.ip(
                    ["link add bridge type bridge mcast_snooping 0", "link set bridge up"]
                    + [f"link set {name} master bridge up" for name in ports]
                )
        for rank, end in enumerate(ends, start=-1):
            if plan.part.has(end.node):
                with self.namespace(end.node).entered():
                    interfaces.disable_ipv6(end.interface)
                    address = f"{plan.management_address(rank)}/{plan.management.prefixlen}"
                    interfaces.ip([f"addr add {address} dev {end.interface}", f"link set {end.interface} up"])

    def _inside(self, host: str) -> Namespace | None:
        """Return the namespace of a host; None if the host is on another machine."""
        return self._driver.namespaces.get(host)

    @property
    def management_interface(self) -> str:
        """Return the name of the root namespace's interface to the management network."""
        return MANAGEMENT_ROOT + self.topology.suffix

    def _commands(self, host: Host) -> None:
        """Run the host's commands from topology.json inside the host."""
        for command in host.commands:
            try:
                with self.namespace(host.name).entered():
                    subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=COMMAND_S, check=True)
            except subprocess.SubprocessError as error:
                reason = getattr(error, "stderr", None) or str(error)
                raise NetworkError(f"hosts.{host.name}.commands: `{command}` failed: {reason.strip()}") from error

    def shape(self, host_name: str, mbps: float | None) -> None:
        """Change a link's rate in both directions, at the ends that are on this machine; None takes the limit away."""
        hosts = {host.name: host for host in self.topology.hosts}
        if host_name not in hosts:
            raise NetworkError(f"the host must be one of {', '.join(hosts)}, got {host_name!r}")
        host = hosts[host_name]
        ends = [(host.place.switch, self.topology.interface(host.place)), (host.name, host.interface)]
        for node, name in ends:
            if not self.plan.part.has(node):
                continue
            with self.namespace(node).entered():
                if mbps is None:
                    interfaces.unshape(name)
                else:
                    interfaces.tc([interfaces.shape_command(name, mbps, self.plan.mtu)])
        self.rates[host.name] = mbps

    def describe(self) -> dict[str, Any]:
        """Return the description of this machine's part of the network for the runner, as JSON."""
        hosts = {
            host.name: {
                "ip": str(host.ip.ip),
                "mac": host.mac,
                "management": str(self.plan.management_address(rank)),
                "switch": host.place.switch,
                "port": host.place.port,
                "interface": self.topology.interface(host.place),
                "mbps": self.rates[host.name],
                "uplink_mbps": uplink.mbps if (uplink := self.topology.uplink(host.place.switch)) else None,
                "namespace": self.namespace(host.name).path,
            }
            for rank, host in enumerate(self.topology.hosts)
            if self.plan.part.has(host.name)
        }
        switches = [
            {
                "name": name,
                "interfaces": self.topology.ports(name),
                "uplink": uplink.leaf.port if (uplink := self.topology.uplink(name)) else None,
            }
            for name in self.plan.switches
        ]
        return {
            "driver": self._driver.name,
            "reason": self.reason,
            "management": str(self.plan.management_address(-1)),
            "management_interface": self.management_interface,
            "whole": not self.plan.part.elsewhere,
            "ring": [[host.name, str(host.ip.ip)] for host in self.topology.hosts],
            "mtu": self.plan.mtu,
            "hosts": hosts,
            "switches": switches,
        }


def _plain(name: str, plan: NetworkPlan) -> None:
    """Switch an interface's offloads off, so that packets pass unchanged; then set it up."""
    interfaces.disable_ipv6(name)
    interfaces.disable_offloads(name, coalesced=plan.coalesced)
    interfaces.ip([f"link set {name} mtu {plan.mtu} up"])


def check_machine(plan: NetworkPlan) -> None:
    """Remove what dead networks have left; raise NetworkError if this network cannot be made on this machine now."""
    _preconditions(plan)
    records.refuse_living()
    _check_routes(plan.management)


def _preconditions(plan: NetworkPlan) -> None:
    """Check the machine before anything is made; raise NetworkError if something is missing."""
    if os.geteuid() != 0:
        raise NetworkError("not root: network namespaces need root, use sudo")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NetworkError(f"the command {tool} is missing: install the apt package iproute2")
    check_plan(plan)


def check_plan(plan: NetworkPlan) -> None:
    """Check the plan without looking at this machine; NetworkError names the field."""
    management, hosts = plan.management, plan.topology.hosts
    if management.num_addresses < len(hosts) + 3:
        raise NetworkError(
            f"network.management must have {len(hosts) + 3} addresses or more for {len(hosts)} hosts, got {management}"
        )
    for host in hosts:
        if management.overlaps(host.ip.network):
            raise NetworkError(
                f"network.management must not overlap a host's network, got {management} and {host.name}'s {host.ip}"
            )


def _check_routes(management: IPv4Network) -> None:
    """Raise NetworkError if this machine already has a route to addresses of the management network."""
    for destination, device in interfaces.routes():
        if ip_network(destination).overlaps(management):
            raise NetworkError(
                f"network.management must not overlap a route, got {management} and the route {destination} dev"
                f" {device}: see `ip route`, and choose another with --management (network.management in run.toml)"
            )
