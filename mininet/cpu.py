"""Limits the processor time of children by a limit of the kernel, or else by a competing load.

Processes of a cgroup that have used `share` of PERIOD_US wait for the next period. boot.py removes its groups at its
end; the groups of a boot.py that was killed are removed by the next one or by `boot.py --clean`. If no group can be
made, the process is bound to one processor. A competing load computes on this processor, at the priority that leaves
the process its share. The load is a child, too.
"""

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def remove_groups(of: int) -> None:
    """Remove the groups that the process `of` made."""
    for cgroup in cgroups():
        for group in cgroup.folder.glob(f"{PREFIX}{of}-*"):
            with contextlib.suppress(OSError):  # the group has a process, which this function must not end
                group.rmdir()


def limit(name: str, pid: int, share: float) -> list[str] | None:
    """Limit a process to `share` of one processor's time; a share of 1 removes the limit.

    Return None if a group keeps the limit. Else the process was bound to a processor: return the command line of the
    load that must compete, empty for a share of 1. OSError if the process cannot be bound.
    """
    for cgroup in cgroups():
        with contextlib.suppress(OSError):
            cgroup.limit(name, pid, share)
            return None
    allowed = sorted(os.sched_getaffinity(0))
    processor = allowed[pid % len(allowed)]
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), allowed if share >= 1 else [processor])
    return [] if share >= 1 else [sys.executable, "-c", LOAD, str(processor), str(niceness(share))]


def niceness(share: float) -> int:
    """Return the niceness, from -20 to 19, of a load that leaves a process of niceness 0 this share of their
    processor."""
    return max(-20, min(19, round(-math.log((1 - share) / share, WEIGHT))))
