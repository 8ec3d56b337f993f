"""Two ways to make hosts and links: with Mininet's API, or with namespaces and links of our own.

On one machine, both ways lead to the same state. Each host has a namespace with the interface hN-eth0; the other end,
s1-ethP, is in this process's namespace, as are both ends of a leaf's link to the root. The next steps (addresses, MTU,
neighbours, offloads) are the same for both drivers, and network.py makes them. Mininet makes no network of several
machines.
"""

import importlib
import shutil
import sys
import types
from typing import Protocol

import interfaces
from errors import NetworkError
from namespaces import Namespace
from parts import NetworkPart
from records import Record
from topology import Topology

NAMES = ("auto", "mininet", "netns")


class NetworkDriver(Protocol):
    """The hosts and links that a driver has made."""

    name: str
    namespaces: dict[str, Namespace]
    """By host, in rank order."""

    def close(self) -> None:
        """Remove hosts and links."""


class Netns:
    """Namespaces and links of our own."""

    name = "netns"

    def __init__(self, topology: Topology, mtu: int, part: NetworkPart) -> None:
        """Make the hosts and the ends of links that are on this machine."""
        hosts = [host for host in topology.hosts if part.has(host.name)]
        self.namespaces = {host.name: Namespace.create(host.name) for host in hosts}
        interfaces.ip(part.data_links(topology, self.namespaces, mtu))
        interfaces.tc(interfaces.shape_command(name, mbps, mtu) for name, mbps in part.shaped_ports(topology))
        for host in hosts:
            if host.mbps:
                with self.namespaces[host.name].entered():
                    interfaces.tc([interfaces.shape_command(host.interface, host.mbps, mtu)])

    def close(self) -> None:
        """Close the namespaces; the kernel then removes them and the links."""
        for namespace in self.namespaces.values():
            namespace.close()


def missing() -> str | None:
    """Return why Mininet cannot be used here; None if it can be used."""
    _provide_distutils()
    try:
        importlib.import_module("mininet.net")
    except ImportError as error:
        return f"{sys.executable} cannot import mininet ({error}; apt package mininet)"
    for tool, package in (("mnexec", "mininet"), ("ifconfig", "net-tools")):
        if shutil.which(tool) is None:
            return f"the command {tool} is missing (apt package {package})"
    return None


def make(name: str, topology: Topology, mtu: int, record: Record, part: NetworkPart) -> tuple[NetworkDriver, str]:
    """Make hosts and links with the driver of that name; also return why this driver was chosen."""
    if name == "netns":
        return Netns(topology, mtu, part), "asked for"
    obstacle = "the network is on several machines" if part.elsewhere else missing()
    if obstacle is None:
        module = importlib.import_module("mininet_driver")
        driver: NetworkDriver = module.MininetDriver(topology, mtu, record)
        return driver, "asked for" if name == "mininet" else "mininet is installed"
    if name == "mininet":
        raise NetworkError(f"driver mininet: {obstacle}: install Mininet, or use the driver netns")
    return Netns(topology, mtu, part), obstacle


def _provide_distutils() -> None:
    """Provide distutils.version.StrictVersion, which Mininet 2.3.0 imports and Python 3.12 lacks.

    Mininet uses it for Open vSwitch only. kofn uses no Open vSwitch, so an empty stand-in is enough.
    """
    try:
        importlib.import_module("distutils.version")
    except ImportError:
        package, version = types.ModuleType("distutils"), types.ModuleType("distutils.version")
        version.StrictVersion = None  # type: ignore[attr-defined]  # a made-up module has no declared attributes
        sys.modules.update({"distutils": package, "distutils.version": version})
