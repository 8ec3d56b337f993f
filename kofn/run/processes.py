"""The processes of a trial. Events start, kill and restart them; the end of a process is excused or a failure."""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum

from kofn.run.errors import RunError
from kofn.run.network import NetworkClient, ProcessSpec

KILL_TIMEOUT_S = 5.0
TOGETHER_S = 0.2
"""Processes that fail within this time are reported in one error."""


class ProcessState(Enum):
    """The state of a process."""

    ABSENT = "never started"
    RUNNING = "running"
    KILLED = "killed"
    DONE = "ended"
    LATE = "too late"


class Processes:
    """Programs by name.

    await processes.launch(program)
    await processes.kill("worker-2")       # no failure
    await processes.restart("worker-2")      # the same command line
    for name in await processes.ended(0.2): ...
    """

    def __init__(self, network: NetworkClient) -> None:
        self._network = network
        self._programs: dict[str, ProcessSpec] = {}
        self._states: dict[str, ProcessState] = {}
        self._pids: dict[str, int] = {}
        self._exits: dict[asyncio.Future[int], str] = {}

    def state(self, name: str) -> ProcessState:
        """Return the state of a process."""
        return self._states.get(name, ProcessState.ABSENT)

    def pid(self, name: str) -> int:
        """Return the id of a started process."""
        return self._pids[name]

    def running(self, names: Sequence[str]) -> bool:
        """Return whether any of these processes runs."""
        return any(self.state(name) is ProcessState.RUNNING for name in names)

    def keep(self, program: ProcessSpec) -> None:
        """Keep the program of a process for a later start."""
        self._programs[program.name] = program

    async def launch(self, program: ProcessSpec) -> None:
        self.keep(program)
        await self.restart(program.name)

    async def restart(self, name: str) -> None:
        """Start a process that does not run, with its known command line; its log continues."""
        self._pids[name] = await self._network.launch(self._programs[name])
        self._states[name] = ProcessState.RUNNING
        self._exits[asyncio.ensure_future(self._network.exit_of(name))] = name

    async def kill(self, name: str) -> None:
        """Send SIGKILL, and return when the process is gone; this end is no failure. Raise RunError if the process is
        not gone after 5 s."""
        self._states[name] = ProcessState.KILLED
        for exit_ in [exit_ for exit_, other in self._exits.items() if other == name]:
            del self._exits[exit_]
            await self._network.kill(name)
            try:
                async with asyncio.timeout(KILL_TIMEOUT_S):
                    await exit_
            except TimeoutError:
                raise RunError(f"{name} was not gone {KILL_TIMEOUT_S:.0f} s after a SIGKILL") from None

    async def ended(self, timeout_s: float, *, excused: Callable[[str], bool] = lambda name: False) -> list[str]:
        """Wait for the end of any process; return the processes that ended well. Raise RunError with the last words of
        a process that failed.

        Switch and controller never end by themselves: any exit code is a failure. An excused process came too late to
        contribute, which is no failure.
        """
        if not self._exits:  # every process was killed, and an event will start one
            await asyncio.sleep(timeout_s)
            return []
        done, _ = await asyncio.wait(self._exits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        codes = {self._exits.pop(exit_): exit_.result() for exit_ in done}
        well = [name for name in self._programs if codes.get(name) == 0 and not self._programs[name].endless]
        self._states.update(dict.fromkeys(well, ProcessState.DONE))  # first: a worker's good end may excuse a failure
        failed = sorted(codes.keys() - set(well), key=list(self._programs).index)
        if unexcused := [name for name in failed if not excused(name)]:
            raise await self._failure(unexcused[0], codes)
        self._states.update(dict.fromkeys(failed, ProcessState.LATE))
        return well

    async def _failure(self, first: str, codes: dict[str, int]) -> RunError:
        """Return the error for a failed process; it also names the processes that failed at the same time."""
        if self._exits:
            done, _ = await asyncio.wait(self._exits, timeout=TOGETHER_S)
            codes = codes | {self._exits.pop(exit_): exit_.result() for exit_ in done}
        others = [f"{name} with exit code {code}" for name, code in sorted(codes.items()) if code and name != first]
        error = self._network.died(first, codes[first])
        return RunError(f"{error}\nended at the same time: {', '.join(others)}") if others else error

    def forget(self) -> None:
        """Stop waiting for processes."""
        for exit_ in self._exits:
            exit_.cancel()
        self._exits.clear()
