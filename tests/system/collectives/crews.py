"""Run all workers of a communicator, as threads of this process or as processes that can be killed."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import pytest

from kofn_common.collectives.job_collective import load_collective
from kofn_host.collectives import Communicator
from tests.loopback import loopback
from tests.system.collectives.switched import SWITCHES, place

T = TypeVar("T")

PEERS = ("ring", "gloo", "mpi")

KINDS = (*PEERS, *SWITCHES)

Join = Callable[[int, float], Communicator]
"""Creates a worker's communicator from its rank and time-out; it can be pickled for a process."""

_ports = count(19_700)
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.system.collectives.scenarios", *(["torch"] if find_spec("torch") else [])])


def skip_where_missing(kind: str) -> None:
    if missing := load_collective(kind).missing():
        pytest.skip(f"{kind}: {missing}")


def addresses(workers: int) -> tuple[str, ...]:
    port = next(_ports)
    return tuple(f"{loopback(88, rank + 1)}:{port}" for rank in range(workers))


@contextmanager
def meeting(kind: str, workers: int) -> Iterator[Join]:
    there = addresses(workers)
    if kind in SWITCHES:
        with place(kind, workers, there) as found:
            yield found.join
        return
    skip_where_missing(kind)
    yield partial(_peer, kind, there)


def _peer(kind: str, there: Sequence[str], rank: int, timeout_s: float) -> Communicator:
    make: Any = load_collective(kind)
    made: Communicator = make(rank, there, timeout_s=timeout_s)
    return made


class Threads:
    """Workers that are threads."""

    def __init__(self, communicators: Sequence[Communicator]) -> None:
        self.communicators = communicators

    def run(self, scenario: Callable[..., T], *given: Any, ranks: Sequence[int] | None = None) -> list[T]:
        """Run a scenario at these ranks and return the results by rank."""
        chosen = self.communicators if ranks is None else [self.communicators[rank] for rank in ranks]
        with ThreadPoolExecutor(len(chosen)) as pool:
            return list(pool.map(lambda communicator: scenario(communicator, *given), chosen))


@contextmanager
def threads(kind: str, workers: int, timeout_s: float = 20.0) -> Iterator[Threads]:
    with meeting(kind, workers) as join, ExitStack() as stack:
        with ThreadPoolExecutor(workers) as pool:
            made = list(pool.map(lambda rank: join(rank, timeout_s), range(workers)))
        for communicator in made:
            stack.enter_context(communicator)
        yield Threads(made)


class Processes:
    """Workers that are processes."""

    def __init__(self, join: Join, workers: int, timeout_s: float) -> None:
        self.processes, self._lines = [], list[Connection]()
        for rank in range(workers):
            ours, theirs = _processes.Pipe()
            process = _processes.Process(target=_work, args=(theirs, join, rank, timeout_s), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self._lines.append(ours)

    def begin(self, scenario: Callable[..., Any], *given: Any, ranks: Sequence[int] | None = None) -> None:
        for rank in range(len(self._lines)) if ranks is None else ranks:
            self._lines[rank].send((scenario, given))

    def end(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """Return the results of the scenarios that run, by rank."""
        return [self._answer(rank) for rank in (range(len(self._lines)) if ranks is None else ranks)]

    def run(self, scenario: Callable[..., T], *given: Any, ranks: Sequence[int] | None = None) -> list[T]:
        self.begin(scenario, *given, ranks=ranks)
        return self.end(ranks)

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for process in self.processes:
            process.join(5)
            process.kill()
            process.join()

    def _answer(self, rank: int) -> Any:
        assert self._lines[rank].poll(60), f"worker {rank} prints nothing"
        fine, answer = self._lines[rank].recv()
        assert fine, f"worker {rank}: {answer}"
        return answer


def _work(line: Connection, join: Join, rank: int, timeout_s: float) -> None:
    """Run the scenarios that arrive on the line until it is closed."""
    with join(rank, timeout_s) as communicator:
        while True:
            try:
                scenario, given = line.recv()
            except EOFError:
                return
            try:
                line.send((True, scenario(communicator, *given)))
            except Exception:
                line.send((False, traceback.format_exc()))


@contextmanager
def processes(kind: str, workers: int, timeout_s: float = 20.0) -> Iterator[Processes]:
    with meeting(kind, workers) as join:
        crew = Processes(join, workers, timeout_s)
        try:
            yield crew
        finally:
            crew.close()


@contextmanager
def crew(kind: str, workers: int, timeout_s: float = 20.0) -> Iterator[Any]:
    """Use threads where possible. MPI allows one worker a process."""
    with (processes if kind == "mpi" else threads)(kind, workers, timeout_s) as found:
        yield found
