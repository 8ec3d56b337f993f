"""Hosts and links by Mininet's own API (2.3.0).  Imported by drivers.py only where Mininet is installed."""

import logging
import subprocess
from typing import Any

import interfaces
from errors import NetworkError
from mininet.link import TCIntf, TCLink  # type: ignore[import-not-found]  # mininet has no types
from mininet.log import lg  # type: ignore[import-not-found]  # mininet has no types
from mininet.net import Mininet  # type: ignore[import-not-found]  # mininet has no types
from mininet.node import Host, Node, Switch  # type: ignore[import-not-found]  # mininet has no types
from mininet.topo import Topo  # type: ignore[import-not-found]  # mininet has no types
from namespaces import Namespace, die_with_parent
from records import Record
from topology import Topology


class TiedShell(Node):  # type: ignore[misc]  # a class without types, here and below
    """A node whose shell ends with this process, also after kill -9; the shell of Mininet's own node would survive."""

    def _popen(self, cmd: list[str], **params: Any) -> Any:
        return super()._popen(cmd, preexec_fn=die_with_parent(), **params)


class HostNode(TiedShell, Host):  # type: ignore[misc]
    """A worker's host."""


class SwitchNode(TiedShell, Switch):  # type: ignore[misc]
    """A switch that consists of its interfaces in our namespace; the P4 target starts on these interfaces later."""

    def start(self, controllers: list[Any]) -> None:
        """Start no OpenFlow switch."""


class ShapedIntf(TCIntf):  # type: ignore[misc]
    """An interface that is shaped for our MTU. Mininet's own bucket holds one 9000-byte frame, and its largest rate is
    1 Gbit/s."""

    def config(self, mtu: int = 1500, **params: Any) -> Any:
        """Keep the MTU for bwCmds, which Mininet calls from here."""
        self.mtu = mtu
        return super().config(**params)

    def bwCmds(self, bw: float | None = None, **_: Any) -> tuple[list[str], str]:  # noqa: N802  # Mininet's name
        """Return our command in Mininet's form: the first '%s' stands for tc, the second one for the interface."""
        command = interfaces.shape_command("%s", bw, self.mtu) if bw else ""
        return [f"%s {command}"] if bw else [], " parent 5:1 "


class OurTopo(Topo):  # type: ignore[misc]
    """Our topology in Mininet's form."""

    def build(self, topology: Topology, mtu: int) -> None:
        """Add the switches, the hosts and their links."""
        for switch in topology.switches:
            self.addSwitch(switch)
        for host in topology.hosts:
            self.addHost(host.name, ip=str(host.ip), mac=host.mac)
            self.addLink(
                host.name,
                host.place.switch,
                port1=0,
                port2=host.place.port,
                intfName2=topology.interface(host.place),
                bw=host.mbps,
                mtu=mtu,
                cls1=ShapedIntf,
                cls2=ShapedIntf,
            )
        for link in topology.uplinks:
            self.addLink(
                link.leaf.switch,
                link.root.switch,
                port1=link.leaf.port,
                port2=link.root.port,
                intfName1=topology.interface(link.leaf),
                intfName2=topology.interface(link.root),
                bw=link.mbps,
                mtu=mtu,
                cls1=ShapedIntf,
                cls2=ShapedIntf,
            )


class Complaints(logging.Handler):
    """Collects the messages of failures, which Mininet only prints."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().strip())


class MininetDriver:
    """A Mininet network around our switch's ports."""

    name = "mininet"

    def __init__(self, topology: Topology, mtu: int, record: Record) -> None:
        """Build and start the network; an error that Mininet only prints becomes a NetworkError."""
        complaints = Complaints()
        lg.handlers[:] = [complaints]
        Mininet.inited = True  # its init() would raise system-wide limits by sysctl, permanently
        try:
            topo = OurTopo(topology=topology, mtu=mtu)
            self._net = Mininet(topo=topo, host=HostNode, switch=SwitchNode, controller=None, link=TCLink)
            self._net.start()
        except (SystemExit, Exception) as error:  # Mininet raises bare Exceptions and exits
            raise NetworkError(f"mininet: {'; '.join([*complaints.lines, str(error)])}") from error
        for node in self._net.values():
            record.add_process(node.pid)
        self.namespaces = {
            host.name: Namespace.of_process(host.name, self._net[host.name].pid) for host in topology.hosts
        }
        if complaints.lines:
            raise NetworkError(f"mininet: {complaints.lines[0]}")

    def close(self) -> None:
        """Stop Mininet, then close the namespaces."""
        try:
            self._net.stop()
        except (OSError, subprocess.SubprocessError) as error:
            raise NetworkError(f"mininet: stop: {error}") from error
        finally:
            for namespace in self.namespaces.values():
                namespace.close()
