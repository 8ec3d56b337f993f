"""The network of `kofn doctor`: small, but of the configuration's kind, with processes to check."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from kofn.doctor.checks import CheckError
from kofn.run.commands import ENVIRONMENT, Commands
from kofn.run.controller_client import ControllerClient
from kofn.run.network import EmulatedHost, NetworkClient, ProcessSpec
from kofn.run.topology import wanted_topology
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import KofnError
from kofn_common.config.job import JobSection
from kofn_common.config.policy import PolicySection
from kofn_common.config.schema import Config
from kofn_common.rpc.errors import SecurityError

UP_S = 30.0
POLL_S = 0.05
EXACT_SLOTS = 1024
"""The slots of the job of exact sums, for the block that each probe contributes alone."""

STAR, MOST = 3, 8
"""The hosts of a single switch without a topology file, and the most workers with a topology file. A rack of a tree has
two hosts."""


class SmallNetwork:
    """A network and its processes.

    small = SmallNetwork(config, source, folder)
    await small.make()
    await small.launch("switch", ROOT, argv)
    await small.close()
    """

    def __init__(self, config: Config, source: Path, folder: Path) -> None:
        """Plan the network, without making it. Files go to `folder`, which the caller removes."""
        self._asked, self._source, self.folder = config, source, folder
        given = config.network.topology is not None
        racks = config.job.racks
        star = racks * min(config.job.workers // racks, 2) if racks > 1 else min(max(config.job.workers, 2), STAR)
        self._hosts = config.job.workers if given else star
        workers = self._hosts if racks > 1 else min(self._hosts, MOST)
        job = JobSection(id=config.job.id, workers=workers, racks=racks, exact_slots=EXACT_SLOTS)
        self.config = replace(
            config, job=job, policy=PolicySection(objective="all"), straggler=(), shock=(), fault=(), event=()
        )
        certificates = folder / "certs" if config.network.tls else None
        self.commands = Commands(
            network=config.network,
            topology=folder / "topology.json",
            certificates=certificates,
            switches=len(config.switches),
        )
        self._network: NetworkClient | None = None

    @property
    def network(self) -> NetworkClient:
        assert self._network is not None, "make() comes first"
        return self._network

    @property
    def workers(self) -> list[tuple[str, EmulatedHost]]:
        """The hosts that have a worker, by rank."""
        return list(self.network.ready.hosts.items())[: self.config.job.workers]

    @property
    def settings(self) -> Path:
        """The configuration that the processes read."""
        return self.folder / "config.toml"

    def log(self, name: str) -> Path:
        """Return the file with the output of a process."""
        return self.folder / f"{name}.log"

    def inspector(self) -> ControllerClient:
        """Return a client of the controller, with the operator's rights."""
        return ControllerClient(self.commands.loopback(), certificates=self.commands.certificates)

    async def make(self) -> str:
        begin, settings = time.monotonic(), self.config.network
        try:
            self.commands.topology.write_text(wanted_topology(self._asked, self._source, hosts=self._hosts))
            self.settings.write_text(to_toml(self.config))
            if self.commands.certificates is not None:
                from kofn_common.rpc.certificates import make_certificates  # noqa: PLC0415  # needs kofn[certs]

                make_certificates(self.commands.certificates, {self.config.job.id: self.config.job.workers})
            self._network = await NetworkClient.start(
                self.commands.topology,
                driver=settings.driver,
                management=settings.management,
                coalesced=settings.coalesced,
                log=self.folder / "boot.log",
            )
        except (KofnError, SecurityError) as error:
            raise CheckError(str(error), "see the message; kofn clean removes what an earlier run has left") from None
        made = f"{len(self.network.ready.hosts)} hosts, driver {self.network.ready.driver}"
        return f"{made}, made in {time.monotonic() - begin:.1f} s"

    async def close(self) -> None:
        """End all processes and remove the network; safe at any time."""
        if self._network is not None:
            await self._network.stop()

    async def launch(self, name: str, node: str, argv: Sequence[str]) -> None:
        program = ProcessSpec(name=name, node=node, argv=argv, log=self.log(name), cwd=Path.cwd(), env=ENVIRONMENT)
        try:
            await self.network.launch(program)
        except KofnError as error:
            raise CheckError(str(error), "see the message") from None

    async def until(self, true: Callable[[], Awaitable[bool]], name: str, otherwise: str) -> None:
        """Wait until `true` returns True. Raise CheckError if the process `name` ends before, or the wait takes too
        long."""
        deadline = time.monotonic() + UP_S
        while not await true():
            await self.still_running([name])
            if time.monotonic() > deadline:
                self.fail(name, f"{otherwise} after {UP_S:.0f} s")
            await asyncio.sleep(POLL_S)

    async def still_running(self, names: Iterable[str]) -> None:
        """Raise CheckError for a process that has ended."""
        for name in names:
            try:
                async with asyncio.timeout(POLL_S):
                    code = await self.network.exit_of(name)
            except TimeoutError:
                continue
            self.fail(name, f"{name} ended with exit code {code}")

    def fail(self, name: str, what: str) -> NoReturn:
        """Raise CheckError with a process's last words."""
        log = self.log(name)
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        words = [line.strip() for line in lines if line.strip()]
        raise CheckError(f"{what}; its last words: {words[-1] if words else 'none'}", "see what it says")
