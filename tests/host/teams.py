"""All workers of a job in one process, on loopback; a switch or a server sums."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import PORT
from kofn_host.collectives.in_network import InNetwork, Nobody
from kofn_host.errors import CollectiveError
from kofn_host.protocol.results import Result
from kofn_host.transport.transport import Transport
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.udp_switch import UdpSwitch
from tests.loopback import loopback

T = TypeVar("T")

SLOTS, WINDOW = 256, 64


class Team:
    """The workers' communicators; each worker is a thread."""

    def __init__(self, communicators: Sequence[InNetwork]) -> None:
        self.communicators = communicators

    def all(self, work: Callable[[Any], T], ranks: Sequence[int] | None = None) -> list[T]:
        """Run the work at these ranks and return the results by rank."""
        chosen = [self.communicators[rank] for rank in ranks] if ranks is not None else self.communicators
        with ThreadPoolExecutor(len(chosen)) as pool:
            return list(pool.map(work, chosen))

    def errors(self, work: Callable[[Any], object], ranks: Sequence[int] | None = None) -> list[str]:
        """Run work that fails at every rank and return the messages by rank."""

        def fails(communicator: InNetwork) -> str:
            try:
                return f"nothing is wrong: {work(communicator)}"
            except CollectiveError as error:
                return str(error)

        return self.all(fails, ranks)


def address(job: int, rank: int) -> str:
    return loopback(80 + job, rank + 1)


class Others(Nobody):
    """Every worker's results, for workers that have missed some."""

    def __init__(self) -> None:
        self.communicators: list[InNetwork] = []

    async def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        for communicator in self.communicators:
            yield list(communicator.agent.protocol.results(first, last))


@dataclass
class Summed:
    """A kind of communicator whose sums obey the slots' rules."""

    name: str
    port: int
    served: dict[tuple[int, int, int], subprocess.Popen[str]] = field(default_factory=dict)
    calls: int = 0

    @contextmanager
    def team(
        self,
        workers: int,
        *,
        k: int | None = None,
        job: int = 1,
        elements: int = 1000,
        words: int = 4,
        timeout_s: float = 20.0,
        lose: int = 0,
        compress: CompressSection = CompressSection(),  # noqa: B008  # frozen
    ) -> Iterator[Team]:
        k = workers if k is None else k
        described = JobSection(id=job, workers=workers, words=words, slots=SLOTS, window=WINDOW)
        own, others = loopback(80 + job, 200 + 10 * workers + k), Others()
        with ExitStack() as stack:
            self.calls += 1
            self._sums(stack, own, job, workers, k, lose)
            for rank in range(workers):
                transport = Transport(own, local=address(job, rank), port=self.port)
                communicator = InNetwork(
                    rank,
                    elements,
                    job=described,
                    transport=transport,
                    compress=compress,
                    peer_source=others,
                    generation=self.calls,
                    timeout_s=timeout_s,
                )
                others.communicators.append(stack.enter_context(communicator))
            yield Team(others.communicators)

    def _sums(self, stack: ExitStack, own: str, job: int, workers: int, k: int, lose: int) -> None:
        """Start the switch of this team, or the server of all similar teams."""
        if self.port == PORT:
            rules = SlotModel(workers=workers, k=k, slots=SLOTS)
            rules.generation = self.calls
            stack.callback(UdpSwitch(rules, own, lambda rank: address(job, rank), lose).close)
        elif (job, workers, k) not in self.served:
            self.served[job, workers, k] = served(own, job, [address(job, rank) for rank in range(workers)], k)

    def close(self) -> list[str]:
        """End all servers and return their last output."""
        said = []
        for process in self.served.values():
            process.terminate()
            said.append(process.communicate(timeout=30)[0])
        return said


def served(own: str, job: int, workers: Sequence[str], k: int) -> subprocess.Popen[str]:
    """Start a parameter server's process and wait until it serves."""
    given = [item for worker in workers for item in ("--worker", worker)]
    command = [
        sys.executable,
        "-m",
        "kofn_host.collectives.parameter_server",
        "--address",
        own,
        "--job",
        str(job),
        "--k",
        str(k),
        *given,
    ]
    process = subprocess.Popen([*command, "--slots", str(SLOTS)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"serving job {job} at {own}"), line
    return process
