"""Limits the processor time of a run's processes ([[cpu]]) by a limit of the kernel, or else by a competing load.

Processes of a cgroup that have used `share` of PERIOD_US wait for the next period. A run removes its groups at its end;
the groups of a run that was killed are removed by the next run or by `kofn clean`. If no group can be made, the process
is bound to one processor. A competing load computes on this processor, at the priority that leaves the process its
share. The load is a process of the network, and so ends with the network.
"""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kofn.run.network import ROOT, ProcessSpec
from kofn.run.processes import Processes, ProcessState

PREFIX = "kofn-"
PERIOD_US = 20_000
WEIGHT = 1.25
"""The factor by which the kernel's scheduler weighs a process more than a process whose niceness is higher by 1."""

LOAD = """
import os, sys
processor, nice = map(int, sys.argv[1:])
os.sched_setaffinity(0, {processor})
os.nice(nice)
try:
    open("/proc/self/autogroup", "w").write(str(nice))  # where sessions are scheduled against each other
except OSError:
    pass
while True:
    pass
"""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A group in which groups with limits can be made, of version 1 or 2."""

    folder: Path
    version: int

    def limit(self, name: str, pid: int, share: float) -> None:
        """Limit a process to `share` of one processor's time; a share of 1 removes the limit. Raise OSError if the
        kernel does not permit it."""
        group = self.folder / f"{PREFIX}{os.getpid()}-{name}"
        group.mkdir(exist_ok=True)
        quota = None if share >= 1 else round(share * PERIOD_US)
        if self.version == 2:
            (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
        (group / "cgroup.procs").write_text(str(pid))


def cgroups() -> Iterator[Cgroup]:
    """Yield existing groups. Only the first write to a group shows whether the group is writable."""
    mounts = [line.split()[1:4] for line in Path("/proc/mounts").read_text().splitlines()]
    for folder, kind, options in mounts:
        path = Path(folder)
        if kind == "cgroup2" and "cpu" in _words(path / "cgroup.controllers"):
            with contextlib.suppress(OSError):  # without root, "cpu" must be in the file already
                (path / "cgroup.subtree_control").write_text("+cpu")
            if "cpu" in _words(path / "cgroup.subtree_control"):
                yield Cgroup(path, 2)
        elif kind == "cgroup" and "cpu" in options.split(","):
            yield Cgroup(path, 1)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def remove_groups(of: int | None = None) -> None:
    """Remove the groups that the process `of` made; None: the groups of all dead processes."""
    for cgroup in cgroups():
        for group in cgroup.folder.glob(f"{PREFIX}*-*"):
            pid = group.name.removeprefix(PREFIX).partition("-")[0]
            if pid == str(of) or (of is None and not Path(f"/proc/{pid}").exists()):
                with contextlib.suppress(OSError):  # the group has a process, which this function must not end
                    group.rmdir()


class CpuShares:
    """The shares of a job's processes in one trial; `log` returns the file for a load's output, by the load's name."""

    def __init__(self, processes: Processes, log: Callable[[str], Path]) -> None:
        self._processes, self._log = processes, log
        self._shares: dict[str, float] = {}

    @property
    def loads(self) -> list[str]:
        """Return the names of the competing loads that run."""
        names = [_load_of(name) for name in self._shares]
        return [name for name in names if self._processes.state(name) is ProcessState.RUNNING]

    async def set(self, names: Sequence[str], share: float) -> str:
        """Set shares, also for restarts; return the reasons of failures, or an empty text."""
        return "; ".join([why for name in names if (why := await self._set(name, share))])

    async def restarted(self, name: str) -> str:
        """Set the share of a restarted process."""
        return await self._set(name, self._shares[name]) if name in self._shares else ""

    async def _set(self, name: str, share: float) -> str:
        self._shares[name] = share
        if self._processes.state(name) is not ProcessState.RUNNING:
            return ""  # the share is set when the process starts
        pid = self._processes.pid(name)
        for cgroup in cgroups():
            with contextlib.suppress(OSError):
                cgroup.limit(name, pid, share)
                return ""
        try:
            await self._load(name, pid, share)
        except OSError as error:
            return f"no cgroup can be made, and {name} cannot be bound to a processor: {error.strerror}"
        return ""

    async def _load(self, name: str, pid: int, share: float) -> None:
        """Replace the competing load of a process."""
        load = _load_of(name)
        if self._processes.state(load) is ProcessState.RUNNING:
            await self._processes.kill(load)
        allowed = sorted(os.sched_getaffinity(0))
        processor = allowed[pid % len(allowed)]
        bound = allowed if share >= 1 else [processor]
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), bound)
        if share < 1:
            argv = [sys.executable, "-c", LOAD, str(processor), str(niceness(share))]
            await self._processes.launch(
                ProcessSpec(name=load, node=ROOT, argv=argv, log=self._log(load), cwd=Path.cwd(), endless=True)
            )


def _load_of(name: str) -> str:
    return f"load-{name}"


def niceness(share: float) -> int:
    """Return the niceness of a load that leaves a process of niceness 0 this share of their processor; -20 to 19.

    >>> [niceness(share) for share in (0.5, 0.25, 0.8)]
    [0, -5, 6]
    """
    return max(-20, min(19, round(-math.log((1 - share) / share, WEIGHT))))
