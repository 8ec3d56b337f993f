"""The emulated network and every process in it, through mininet/boot.py: JSON lines over its stdin and stdout.

boot.py runs with the system Python (Mininet installs there) and holds everything that it starts. When this process
dies in any way, boot.py sees the end of its stdin and removes everything.
"""

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from kofn.run.errors import LeftoversError, RunError
from kofn_common.config.errors import KofnError
from kofn_common.places import folder_of
from kofn_common.results.link_bytes import LinkBytes, interface_bytes, port_bytes
from kofn_common.results.logs import tail

SYSTEM_PYTHON = Path("/usr/bin/python3")
BOOT = folder_of("kofn_mininet") / "boot.py"
CHECK = "check"
"""The event with one check's result."""
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
    """A running boot.py.

    network = await NetworkClient.start(topology, driver="auto", management="172.30.255.0/24", log=Path("boot.log"))
    await network.launch(ProcessSpec(name="switch", node="root", ...))
    code = await network.exit_of("switch")
    await network.stop()
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.ready: Ready
        self.counts: dict[str, Path] = {}
        """The file in which each switch counts, by its name in the topology; empty: the kernel counts."""
        self._process = process
        self._log = log
        self._waiting: dict[tuple[str, str], asyncio.Future[dict[str, Any]]] = {}
        self._programs: dict[str, ProcessSpec] = {}
        self._checks = 0
        self._failure: str | None = None
        self._stopped = False
        self._reader = asyncio.create_task(self._read())

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
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *map(str, argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # the terminal's Ctrl-C goes to the runner, which stops all processes in order
            )
        network = cls(process, log)
        try:
            event = await network._wait("ready", "", timeout_s)
            network.ready = msgspec.convert(event, Ready)
        except BaseException:
            await network.stop()
            raise
        return network

    async def launch(self, program: ProcessSpec, timeout_s: float = 10.0) -> int:
        """Start a process; return its process id."""
        self._programs[program.name] = program
        self._waiting.pop(("exited", program.name), None)  # from a process of an earlier trial with the same name
        self._future("exited", program.name)
        await self._send(
            do="start",
            id=program.name,
            node=program.node,
            argv=list(program.argv),
            env=dict(program.env),
            log=str(program.log.resolve()),
            cwd=str(program.cwd.resolve()),
        )
        return int((await self._wait("started", program.name, timeout_s))["pid"])

    async def exit_of(self, name: str) -> int:
        """Wait until a launched process has ended; return its exit code (negative: the signal)."""
        return int((await asyncio.shield(self._future("exited", name)))["code"])

    def died(self, name: str, code: int) -> RunError:
        """Return the error for a process that should not have ended."""
        log = self._programs[name].log
        return RunError(f"{name} ended with exit code {code} (log: {log}):\n{tail(log)}")

    async def kill(self, name: str) -> None:
        """Send SIGKILL, unless the process has ended already."""
        await self._send(do="signal", id=name, signal="KILL")

    async def end(self, names: Iterable[str], timeout_s: float = 4.0) -> None:
        """Stop processes: SIGTERM, then SIGKILL for the processes that remain."""
        for signal in ("TERM", "KILL"):
            alive = [name for name in names if not self._future("exited", name).done()]
            for name in alive:
                await self._send(do="signal", id=name, signal=signal)
            exits = [self._future("exited", name) for name in alive]
            if not exits or not (await asyncio.wait(exits, timeout=timeout_s))[1]:
                return

    async def shape(self, host: str, mbps: float | None, timeout_s: float = 10.0) -> None:
        """Change the rate of a host's link in both directions; None removes the limit. Calls must not overlap."""
        await self._send(do="shape", host=host, mbps=mbps)
        await self._wait("shaped", "", timeout_s)

    def link_bytes(self) -> LinkBytes:
        """Return, for each link, the bytes received and sent at the switch's end; for an uplink, the bytes sent and
        received at its leaf's end."""
        kernels = {} if self.counts else interface_bytes()
        switches = {switch.name: switch.interfaces for switch in self.ready.switches}

        def bytes_at(switch: str, port: int) -> tuple[int, int]:
            return port_bytes(self.counts[switch], port) if self.counts else kernels[switches[switch][str(port)]]

        links = {name: bytes_at(host.switch, host.port) for name, host in self.ready.hosts.items()}
        return links | {leaf: bytes_at(leaf, port)[::-1] for leaf, port in self.ready.uplinks.items()}

    async def check(self, timeout_s: float = 80.0) -> AsyncIterator[LinkCheck]:
        """Verify reachability and link rates, in order; the slowest possible link takes 60 s."""
        self._checks = 0
        await self._send(do="check")
        for number in itertools.count():
            event = await self._wait(CHECK, str(number), timeout_s)
            if event["event"] != CHECK:
                return
            yield msgspec.convert(event, LinkCheck)

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
        if self._process.returncode is None:
            with contextlib.suppress(KofnError, TimeoutError):
                await self._send(do="stop")
            if self._process.stdin is not None:
                self._process.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if not self.clean:
            await self._remove()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        for future in self._waiting.values():
            future.cancel()

    @property
    def clean(self) -> bool:
        """Whether boot.py has ended by itself. Before boot.py ends by itself, it removes everything, also after an
        error."""
        return self._process.returncode in (0, 2)

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

    def _future(self, event: str, name: str) -> asyncio.Future[dict[str, Any]]:
        key = (event, name)
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._failure is not None:
                self._waiting[key].set_exception(RunError(self._failure))
        return self._waiting[key]

    async def _wait(self, event: str, name: str, timeout_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._future(event, name))
        except TimeoutError:
            what = f"{event} {name}".strip()
            raise RunError(f"the network did not answer {what!r} within {timeout_s:g} s; see {self._log}") from None
        finally:
            if event != "exited":
                self._waiting.pop((event, name), None)

    async def _send(self, **command: Any) -> None:
        if self._failure is not None:
            raise RunError(self._failure)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise RunError(f"the network process has ended (log: {self._log}):\n{tail(self._log)}") from None

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                self._handle(msgspec.json.decode(line, type=dict[str, Any]))
        except ValueError as error:
            self._fail(f"the network process must write events, got another line: {error}; see {self._log}")
        if not self._stopped:
            self._fail(f"the network process has ended (log: {self._log}):\n{tail(self._log)}")

    def _handle(self, event: dict[str, Any]) -> None:
        match event:
            case {"event": "check" | "checked"}:
                self._future(CHECK, str(self._checks)).set_result(event)
                self._checks += 1
            case {"event": "error", "message": message}:
                self._fail(f"network: {message}")
            case {"event": "stopped"}:
                self._stopped = True
            case {"event": name}:
                future = self._future(name, event.get("id", ""))
                if not future.done():
                    future.set_result(event)

    def _fail(self, message: str) -> None:
        """Fail every waiting call with the first failure."""
        self._failure = self._failure or message
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RunError(self._failure))
                future.exception()  # asyncio warns of an exception that was never read
