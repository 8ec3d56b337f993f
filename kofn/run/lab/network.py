"""A run's network on the machines of a laboratory: the same nodes, links and processes as on one machine."""

import asyncio
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from kofn.run.boot_process import BootProcess
from kofn.run.errors import RunError
from kofn.run.lab.checkout import Checkout
from kofn.run.lab.connection import ForwardedPorts
from kofn.run.lab.lab_file import HERE, LabMachine, Placed
from kofn.run.lab.machine import MANIFEST, ConnectedMachine
from kofn.run.machine import TUNNEL_BYTES, packet_bytes
from kofn.run.network import ROOT, EmulatedHost, NetworkClient, ProcessSpec, Ready
from kofn.run.network_record import RecordedHost, recorded
from kofn_common.config.job import JobSection
from kofn_common.config.network import NetworkSection
from kofn_common.results.record import MachineRecord

MTU = 9000
"""The largest MTU of the data network's links."""

ROUTE_S, MAKE_S = 10.0, 60.0
LINKS = 4096
"""The VXLAN ids that a run keeps for its links: more than a network has links (mininet/parts.py)."""


class LabNetwork(NetworkClient):
    """The network of a run on several machines.

    network = await LabNetwork.connect(placed, checkout, folder, settings)
    await network.make(topology, management="172.30.255.0/24", coalesced=True, jobs=jobs)
    await network.launch(...)    # and everything else as NetworkClient does
    """

    def __init__(self, placed: Placed, folder: Path) -> None:
        super().__init__()
        self.machines: dict[str, ConnectedMachine] = {}
        """By host, as the laboratory's file names it."""
        self._placed, self._folder, self._stack = placed, folder, ExitStack()

    @classmethod
    async def connect(cls, placed: Placed, checkout: Checkout, folder: Path, settings: NetworkSection) -> Self:
        """Connect to all machines at once. RunError names each machine that cannot be reached."""
        network = cls(placed, folder)
        ports = network._ports(settings)

        async def one(machine: LabMachine) -> ConnectedMachine:
            log = folder / f"boot-{machine.host}.log"
            return await ConnectedMachine.connect(machine, checkout, folder, ports=ports[machine.host], log=log)

        found = await asyncio.gather(*map(one, placed.machines), return_exceptions=True)
        connected = [machine for machine in found if isinstance(machine, ConnectedMachine)]
        network.machines = {machine.name: machine for machine in connected}
        if failed := [error for error in found if isinstance(error, BaseException)]:
            await network.stop()
            raise next((error for error in failed if not isinstance(error, RunError)), RunError(_lines(failed)))
        for machine in connected:
            machine.at_failure = network._fail
            machine.at_checkpoint = network._completed
        return network

    def _ports(self, settings: NetworkSection) -> dict[str, ForwardedPorts]:
        """Return the ports that each machine's ssh carries: from here to the controller and the switches, and from the
        controller to the leaves on other machines, by way of this machine."""
        switches = self._placed.switches
        machines = [self._placed.nodes[node] for node in switches]
        root, numbers = machines[0], settings.p4runtime_ports(len(switches))
        found = {}
        for machine in self._placed.machines:
            there = [port for port, other in zip(numbers, machines, strict=True) if other is machine]
            leaves = [port for port, other in zip(numbers, machines, strict=True) if other is not root]
            own = [settings.controller_port] if machine is root else []
            found[machine.host] = ForwardedPorts(there=(*own, *there), here=(*leaves,) if machine is root else ())
        return found

    async def make(self, topology: Path, *, management: str, coalesced: bool, jobs: Iterable[JobSection]) -> None:
        """Make the network: every machine makes its part. RunError if packets of a job do not fit into tunnels."""
        self._check_relayed()
        mtu = await self._mtu()
        for job in jobs:
            if (needed := packet_bytes(job)) > mtu:
                raise RunError(f"tunnels between the machines have an MTU of {mtu}, packets of the job need {needed}")
        document = msgspec.json.decode(topology.read_bytes())
        shared = {"topology": document, "management": management, "mtu": mtu, "gso": coalesced}
        first_id = LINKS * secrets.randbelow((1 << 24) // LINKS)
        for machine in self.machines.values():
            address, elsewhere = machine.described.address, self._placed.elsewhere(machine.described)
            part = {"address": address, "elsewhere": elsewhere, "first_id": first_id}
            await machine.send(do="make", part=part, **shared)
        made = {
            host: msgspec.convert(await machine.wait("ready", "", MAKE_S), Ready)
            for host, machine in self.machines.items()
        }
        hosts = {name: host for ready in made.values() for name, host in ready.hosts.items()}
        switches = [switch for ready in made.values() for switch in ready.switches]
        self.ready = replace(
            made[self._placed.nodes[self._root].host],
            hosts={name: hosts[name] for name in document["hosts"]},
            switches=tuple(sorted(switches, key=lambda switch: int(switch.name[1:]))),
        )
        hosts_of_record = {name: self._recorded(name, host) for name, host in self.ready.hosts.items()}
        self._stack.enter_context(recorded(hosts_of_record))

    def _check_relayed(self) -> None:
        """Check that no switch of a tree is behind a relay, which carries no P4Runtime between machines."""
        for node in self._placed.switches if len(self._placed.switches) > 1 else ():
            if (machine := self._machine(node)).relayed:
                raise RunError(
                    f"{machine.name} must have root for a tree's switch {node}: with a user namespace, job.racks is 1"
                )

    @property
    def records(self) -> tuple[MachineRecord, ...]:
        return tuple(machine.record(self._placed.on(machine.described)) for machine in self.machines.values())

    def _recorded(self, name: str, host: EmulatedHost) -> RecordedHost:
        """Return a host as commands find it."""
        reached = self._placed.nodes[name].host
        known = {field: getattr(host, field) for field in ("ip", "mac", "management", "port", "interface", "mbps")}
        return RecordedHost(**known, namespace=host.namespace, machine="" if reached == HERE else reached)

    async def _mtu(self) -> int:
        """Return the MTU of links: what the machines' networks leave in a tunnel."""
        switches = {self._placed.nodes[node].address for node in self._placed.switches}
        least = MTU
        for machine in self.machines.values():
            others = sorted(switches - {machine.described.address})
            await machine.send(do="route", to=others)
            mtus = (await machine.wait("route", "", ROUTE_S))["mtu"]
            least = min([least, *(mtu - TUNNEL_BYTES for mtu in mtus.values())])
        return least

    async def share(self, folder: Path) -> None:
        """Put all files of a folder of the run on all machines."""
        await asyncio.gather(*(machine.share(folder) for machine in self.machines.values()))

    def _completed(self, checkpoint: Path) -> None:
        """Remove the parts of checkpoints that are whole here from machines whose workers do not rename them."""
        whole = [path for path in checkpoint.parent.iterdir() if path <= checkpoint and _whole(path)]
        parts = [f"{path.relative_to(self._folder.resolve())}.part" for path in whole]
        for machine in self.machines.values():
            machine.post(do="remove", paths=parts)

    def _fail(self, message: str) -> None:
        """Without one machine no other one can go on."""
        for machine in self.machines.values():
            machine.fail(message)

    @property
    def _boots(self) -> Sequence[BootProcess]:
        return [*self.machines.values()]

    def _at(self, node: str) -> BootProcess:
        return self._machine(node)

    def _link(self, host: str) -> Collection[BootProcess]:
        return {self._at(host), self._at(self.ready.hosts[host].switch)}

    def _machine(self, node: str) -> ConnectedMachine:
        return self.machines[self._placed.nodes[self._root if node == ROOT else node].host]

    @property
    def _root(self) -> str:
        return self._placed.switches[0]

    async def launch(self, program: ProcessSpec, timeout_s: float = 10.0) -> int:
        """Start a process on its node's machine, after the folders that it may write to; return its process id."""
        await self._machine(program.node).make_folders()
        return await super().launch(program, timeout_s)

    def _command(self, program: ProcessSpec) -> dict[str, Any]:
        machine = self._machine(program.node)
        there = machine.translation
        return {
            "argv": [there(part) for part in program.argv],
            "env": {name: there(value) for name, value in program.env.items()} | machine.environment(),
            "log": there(str(program.log.resolve())),
            "cwd": machine.working_folder(program.cwd),
        }

    async def _stop(self, timeout_s: float) -> None:
        self._stack.close()
        await asyncio.gather(*(machine.stop(timeout_s) for machine in self.machines.values()))
        await asyncio.gather(*(machine.close() for machine in self.machines.values()))


def _lines(errors: Iterable[BaseException]) -> str:
    return "\n".join(map(str, errors))


def _whole(checkpoint: Path) -> bool:
    """Return whether all files that a checkpoint's manifest names are in its folder."""
    if not (checkpoint / MANIFEST).exists():
        return False
    named = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=dict[str, Any])["manifest"]["files"]
    return all((checkpoint / name).exists() for name in named)
