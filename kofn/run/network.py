"""The emulated network and every process in it, through mininet/boot.py on each of its machines.

boot.py runs with the system Python (Mininet installs there) and holds everything that it starts. When this process
dies in any way, boot.py sees the end of its stdin and removes everything.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from kofn.run.boot_process import BootProcess
from kofn.run.errors import LeftoversError, RunError
from kofn_common.places import folder_of
from kofn_common.results.link_bytes import LinkBytes, interface_bytes, port_bytes
from kofn_common.results.logs import tail
from kofn_common.results.record import MachineRecord

SYSTEM_PYTHON = Path("/usr/bin/python3")
BOOT = folder_of("kofn_mininet") / "boot.py"
CHECK_S = 80.0
"""The longest time of a check: the slowest possible link takes 60 s."""
ROOT = "root"
"""The node name of the root namespace."""


class EmulatedHost(msgspec.Struct, frozen=True):
    """A worker's machine: addresses in the data and the management network, the switch, and the port at the switch."""

    ip: str
    mac: str
    management: str
    port: int
    interface: str
    switch: str = "s1"
    mbps: float | None = None  # the rate of the host's link in the topology; None: not shaped
    uplink_mbps: float | None = None  # the rate of its leaf's link to the root; None: not shaped
    namespace: str = ""  # a path for `nsenter --net` on the host's machine


class EmulatedSwitch(msgspec.Struct, frozen=True):
    """A switch's name in the topology, its interfaces by port number, and a leaf's port towards the root."""

    name: str
    interfaces: dict[str, str]
    uplink: int | None = None


class Ready(msgspec.Struct, frozen=True):
    """The network as it was made. `switches` has the only switch, or the root and the leaves of a tree."""

    driver: str
    hosts: dict[str, EmulatedHost]
    switches: tuple[EmulatedSwitch, ...]
    management_interface: str = ""  # the root namespace's interface in the management network

    @property
    def slowest_mbps(self) -> float | None:
        """The rate of the slowest link in the topology; None: no link is shaped."""
        hosts = self.hosts.values()
        rates = [rate for host in hosts for rate in (host.mbps, host.uplink_mbps) if rate is not None]
        return min(rates, default=None)

    @property
    def uplinks(self) -> dict[str, int]:
        """The port of each leaf towards the root, by the leaf's name."""
        return {switch.name: switch.uplink for switch in self.switches if switch.uplink is not None}


class LinkCheck(msgspec.Struct, frozen=True):
    """A check of boot.py, and its result."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process to start: its node, command line and log."""

    name: str
    node: str
    argv: Sequence[str]
    log: Path
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    endless: bool = False
    """Whether the process must run until it is ended: an end by itself is then a failure, with any exit code."""


async def listens(port: int) -> bool:
    """Return whether a process of this machine accepts TCP connections at the port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


class NetworkClient:
    """A running network: the boot.py of its only machine.

    network = await NetworkClient.start(topology, driver="auto", management="172.30.255.0/24", log=Path("boot.log"))
    await network.launch(ProcessSpec(name="switch", node="root", ...))
    code = await network.exit_of("switch")
    await network.stop()

    kofn/run/lab/network.py extends it to several machines.
    """

    def __init__(self) -> None:
        self.ready: Ready
        self.counts: dict[str, Path] = {}
        """The file in which each switch counts, by its name in the topology; empty: the kernel counts."""
        self._boot: BootProcess
        self._log: Path
        self._programs: dict[str, ProcessSpec] = {}

    @classmethod
    async def start(
        cls,
        topology: Path,
        *,
        driver: str,
        management: str,
        log: Path,
        coalesced: bool = False,
        timeout_s: float = 60.0,
    ) -> Self:
        """Create the network; with `coalesced`, coalesced packets may cross its links. Raise RunError with boot.py's
        message if that fails."""
        argv = [SYSTEM_PYTHON, BOOT, "--topology", topology, "--driver", driver, "--management", management]
        argv += ["--gso"] if coalesced else []
        network = cls()
        network._boot, network._log = await BootProcess.start([*map(str, argv)], log=log), log
        try:
            network.ready = msgspec.convert(await network._boot.wait("ready", "", timeout_s), Ready)
        except BaseException:
            await network.stop()
            raise
        return network

    @property
    def records(self) -> tuple[MachineRecord, ...]:
        """The other machines, for the run's record."""
        return ()

    @property
    def _boots(self) -> Sequence[BootProcess]:
        """The boot.py of each machine."""
        return [self._boot]

    def _at(self, node: str) -> BootProcess:
        """Return the boot.py of a node's machine."""
        return self._boot

    def _link(self, host: str) -> Collection[BootProcess]:
        """Return the boot.py of each machine with an end of a host's link."""
        return [self._boot]

    def _of(self, name: str) -> BootProcess:
        """Return the boot.py that runs a launched process."""
        return self._at(self._programs[name].node)

    async def share(self, folder: Path) -> None:
        """Let processes on all machines have the files of a folder of the run: on one machine they have them."""

    async def launch(self, program: ProcessSpec, timeout_s: float = 10.0) -> int:
        """Start a process; return its process id."""
        self._programs[program.name] = program
        boot = self._of(program.name)
        boot.forget("exited", program.name)  # from a process of an earlier trial with the same name
        boot.future("exited", program.name)
        await boot.send(do="start", id=program.name, node=program.node, **self._command(program))
        return int((await boot.wait("started", program.name, timeout_s))["pid"])

    def _command(self, program: ProcessSpec) -> dict[str, Any]:
        """Return a process's command line and files, as its machine knows them."""
        return {
            "argv": list(program.argv),
            "env": dict(program.env),
            "log": str(program.log.resolve()),
            "cwd": str(program.cwd.resolve()),
        }

    async def exit_of(self, name: str) -> int:
        """Wait until a launched process has ended; return its exit code (negative: the signal)."""
        return int((await asyncio.shield(self._of(name).future("exited", name)))["code"])

    def died(self, name: str, code: int) -> RunError:
        """Return the error for a process that should not have ended."""
        log = self._programs[name].log
        return RunError(f"{name} ended with exit code {code} (log: {log}):\n{tail(log)}")

    async def kill(self, name: str) -> None:
        """Send SIGKILL, unless the process has ended already."""
        await self._of(name).send(do="signal", id=name, signal="KILL")

    async def end(self, names: Iterable[str], timeout_s: float = 4.0) -> None:
        """Stop processes: SIGTERM, then SIGKILL for the processes that remain."""
        for signal in ("TERM", "KILL"):
            alive = [name for name in names if not self._of(name).future("exited", name).done()]
            for name in alive:
                await self._of(name).send(do="signal", id=name, signal=signal)
            exits = [self._of(name).future("exited", name) for name in alive]
            if not exits or not (await asyncio.wait(exits, timeout=timeout_s))[1]:
                return

    async def shape(self, host: str, mbps: float | None, timeout_s: float = 10.0) -> None:
        """Change the rate of a host's link in both directions; None removes the limit. Calls must not overlap."""
        for boot in self._link(host):
            await boot.send(do="shape", host=host, mbps=mbps)
            await boot.wait("shaped", "", timeout_s)

    async def limit(self, name: str, share: float, timeout_s: float = 10.0) -> str:
        """Limit a running process to this share of a processor's time, 1 for no limit; return why that is impossible,
        or an empty text."""
        boot = self._of(name)
        await boot.send(do="limit", id=name, share=share)
        return str((await boot.wait("limited", name, timeout_s))["missed"])

    def link_bytes(self) -> LinkBytes:
        """Return, for each link, the bytes received and sent at the switch's end; for an uplink, the bytes sent and
        received at its leaf's end."""
        kernels = {} if self.counts else interface_bytes()
        switches = {switch.name: switch.interfaces for switch in self.ready.switches}

        def bytes_at(switch: str, port: int) -> tuple[int, int]:
            return port_bytes(self.counts[switch], port) if self.counts else kernels[switches[switch][str(port)]]

        links = {name: bytes_at(host.switch, host.port) for name, host in self.ready.hosts.items()}
        return links | {leaf: bytes_at(leaf, port)[::-1] for leaf, port in self.ready.uplinks.items()}

    async def check(self) -> AsyncIterator[LinkCheck]:
        """Verify reachability and link rates, machine by machine."""
        for boot in self._boots:
            async for check in boot.check(CHECK_S):
                yield msgspec.convert(check, LinkCheck)

    async def stop(self, timeout_s: float = 4.0) -> None:
        """End all processes and remove the network, also after boot.py's death; safe to call twice.

        If a signal cancels the caller, the cancellation waits for the removal.
        """
        stopping = asyncio.create_task(self._stop(timeout_s))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise

    async def _stop(self, timeout_s: float) -> None:
        await self._boot.stop(timeout_s)
        if not self._boot.clean:
            await self._remove()
        await self._boot.close()

    async def _remove(self) -> None:
        """Remove the network after boot.py's death. Otherwise the sockets of boot.py's children may hold the links for
        minutes."""
        with self._log.open("ab") as log:
            cleaning = await asyncio.create_subprocess_exec(
                *(str(SYSTEM_PYTHON), str(BOOT), "--clean"), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if await cleaning.wait():
            raise LeftoversError(
                f"the network could not be removed: kofn clean tries it again; the last lines of {self._log}:\n"
                f"{tail(self._log)}"
            )
