"""One pass: switch, controller and workers from start to the last worker's exit, in a network that is there already."""

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import grpc
import msgspec
from rich.console import Console

from rpc import kofn_pb2, kofn_pb2_grpc
from rpc.document import document
from run.config import Config
from run.errors import RunError
from run.folder import PassFolder, RunFolder
from run.live import Display, PassView, say
from run.network import ROOT, Network, Program

START_TIMEOUT_S = 60.0
STALL_S = 60.0
POLL_S = 0.2
PROJECT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),  # workers share this machine's cores
    **dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), ""),  # no proxy knows our addresses
    "PYTHONUNBUFFERED": "1",  # a log ends with the process's last words
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The command line of every process of a pass."""

    config: Config
    folder: RunFolder
    target: str

    def switch(self, interfaces: dict[str, str]) -> list[str]:
        """The same flags for both targets."""
        network = self.config.network
        name = [sys.executable, "-m", "switch"] if self.target == "embedded" else [_bmv2()]
        ports = [part for port, name in sorted(interfaces.items()) for part in ("-i", f"{port}@{name}")]
        address = f"127.0.0.1:{network.p4runtime_port}"
        grpc_flags = ["--grpc-server-addr", address, "--cpu-port", "255"]
        return [*name, "--no-p4", *ports, "--device-id", str(network.device_id), "--", *grpc_flags]

    def controller(self, entry: PassFolder) -> list[str]:
        """Listens for people on the loopback and for workers on the management network."""
        network = self.config.network
        return [
            *(sys.executable, "-m", "controller"),
            *("--config", str(self.folder.config.resolve())),
            *("--topology", str(self.folder.topology.resolve())),
            *("--objective", entry.objective),
            *("--decisions", str(entry.decisions.resolve())),
            *("--p4runtime", f"127.0.0.1:{network.p4runtime_port}"),
            *("--listen", f"127.0.0.1:{network.controller_port}"),
            *("--listen", self.management()),
        ]

    def worker(self, rank: int, address: str, metrics: Path) -> list[str]:
        """Finds the controller in the management network."""
        return [
            *(sys.executable, "-m", "host"),
            *("--config", str(self.folder.config.resolve())),
            *("--rank", str(rank)),
            *("--controller", self.management()),
            *("--address", address),
            *("--metrics", str(metrics.resolve())),
        ]

    def management(self) -> str:
        """The controller's address for workers: the first one of the management network is the root namespace's."""
        first = ip_network(self.config.network.management)[1]
        return f"{first}:{self.config.network.controller_port}"


class Pass:
    """Runs one objective.

    >>> await Pass(network, commands, folder.passes[0], console, title="round (1 of 2)").run()
    """

    def __init__(self, network: Network, commands: Commands, folder: PassFolder, console: Console, title: str) -> None:
        """Nothing is started yet."""
        self._network, self._commands, self._folder, self._console = network, commands, folder, console
        self._config = commands.config
        self._view = PassView(folder, self._config.job.workers, title)
        self._programs: list[str] = []

    async def run(self, *, check: bool, quiet: bool) -> None:
        """Start everything, wait for the workers, stop everything; RunError if a process fails or nothing moves."""
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self._config.run.pass_deadline_s):
                await self._start_control_plane()
                if check:
                    await self._check()
                await self._train(quiet)
        except TimeoutError:
            raise RunError(
                f"pass {self._folder.objective!r} was not over after {time.monotonic() - begin:.0f} s "
                f"(run.pass_deadline_s); logs: {self._folder.path / 'logs'}"
            ) from None
        await self._network.end(["controller"])
        await self._network.end(["switch"])

    async def _start_control_plane(self) -> None:
        await self._launch("switch", ROOT, self._commands.switch(self._network.ready.interfaces()))
        await self._until_up(["switch"], self._switch_listens(), "the switch's P4Runtime server")
        await self._launch("controller", ROOT, self._commands.controller(self._folder))
        await self._until_up(["switch", "controller"], self._controller_ready(), "the controller and its switch")

    async def _check(self) -> None:
        checks = await self._network.check()
        for check in checks:
            say(self._console, f"  {'ok    ' if check.ok else 'FAILED'} {check.name}: {check.detail}")
        if failed := [check.name for check in checks if not check.ok]:
            raise RunError(f"the network is not as configured: {', '.join(failed)}")

    async def _train(self, quiet: bool) -> None:
        ranks = range(self._config.job.workers)
        for rank, host in zip(ranks, self._network.ready.hosts.items(), strict=True):
            argv = self._commands.worker(rank, host[1].management, self._folder.metrics(rank))
            await self._launch(f"worker-{rank}", host[0], argv)
        self._view.begin()
        watching = asyncio.create_task(self._watch())
        try:
            with Display(self._console, self._view, quiet=quiet) as display:
                await self._until_done([f"worker-{rank}" for rank in ranks], display)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _launch(self, name: str, node: str, argv: Sequence[str]) -> None:
        program = Program(name=name, node=node, argv=argv, log=self._folder.log(name), cwd=PROJECT, env=ENVIRONMENT)
        self._programs.append(name)
        await self._network.launch(program)

    async def _until_done(self, workers: list[str], display: Display) -> None:
        """Until every worker has ended well; RunError as soon as anything ends badly or nothing moves."""
        exits = {asyncio.ensure_future(self._network.exit_of(name)): name for name in self._programs}
        try:
            while any(name in workers for name in exits.values()):
                done, _ = await asyncio.wait(exits, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda task: self._programs.index(exits[task])):
                    name = exits.pop(task)
                    if task.result() != 0 or name not in workers:
                        raise self._network.died(name, task.result())
                self._view.poll()
                display.show()
                self._check_progress()
        finally:
            for task in exits:
                task.cancel()

    def _check_progress(self) -> None:
        slowest_ms = max((entry.mean_ms for entry in self._config.straggler), default=0.0)
        limit_s = max(STALL_S, 20 * slowest_ms / 1e3)
        if time.monotonic() - self._view.last_news > limit_s:
            raise RunError(
                f"no worker finished an iteration for {limit_s:.0f} s; last: {self._view.headline()}; "
                f"logs: {self._folder.path / 'logs'}"
            )

    async def _until_up(self, names: list[str], up: AsyncIterator[bool], what: str) -> None:
        """Until `up` yields True; RunError if one of the processes ends before that, or it takes too long."""
        exits = {asyncio.ensure_future(self._network.exit_of(name)): name for name in names}
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                async for ready in up:
                    if ready:
                        return
                    done, _ = await asyncio.wait(exits, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        raise self._network.died(exits[task], task.result())
        except TimeoutError:
            log = self._folder.log(names[-1])
            raise RunError(f"{what} did not answer within {START_TIMEOUT_S:.0f} s; see {log}") from None
        finally:
            for task in exits:
                task.cancel()

    async def _switch_listens(self) -> AsyncIterator[bool]:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._config.network.p4runtime_port)
            except OSError:
                yield False
                continue
            writer.close()
            yield True

    async def _controller_ready(self) -> AsyncIterator[bool]:
        async with self._channel() as channel:
            inspector = kofn_pb2_grpc.InspectorStub(channel)
            while True:
                try:
                    status = await inspector.GetStatus(kofn_pb2.StatusRequest(), timeout=2.0)
                    yield status.switch_connected
                except grpc.aio.AioRpcError:
                    yield False

    async def _watch(self) -> None:
        """Keep the controller's statuses for the table and for the report."""
        async with self._channel() as channel:
            inspector = kofn_pb2_grpc.InspectorStub(channel)
            with self._folder.status.open("ab") as out, contextlib.suppress(grpc.aio.AioRpcError):
                async for status in inspector.WatchStatus(kofn_pb2.StatusRequest(interval_s=0.1)):
                    self._view.update(status)
                    out.write(msgspec.json.encode({"time": time.time(), **document(status)}) + b"\n")

    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(
            f"127.0.0.1:{self._config.network.controller_port}", options=[("grpc.enable_http_proxy", 0)]
        )


def _bmv2() -> str:
    return shutil.which("simple_switch_grpc") or "simple_switch_grpc"
