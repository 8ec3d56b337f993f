"""The load of other processes on a run's machine."""

import os
import time
from pathlib import Path

LOADAVG = Path("/proc/loadavg")
STAT = Path("/proc/stat")
SAMPLES, EVERY_S = 10, 0.01
FREE = 0.25
"""The share of the cores that other processes may use without a remark."""


def load_note(cores: int | None = None) -> str:
    """Return a remark if other processes use a part of the cores now; empty if they leave the cores to the run."""
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    tasks = runnable()
    if tasks <= FREE * cores:
        return ""
    return (
        f"the machine was loaded when the run began: {tasks:.1f} tasks of other processes were runnable on {cores}"
        " cores. Its times are longer than on an idle machine"
    )


def runnable() -> float:
    """Return the mean number of the machine's tasks, without this one, that run or wait for a core; 0 if unknown."""
    counts = []
    for _ in range(SAMPLES):
        try:
            counts.append(max(int(LOADAVG.read_text().split()[3].partition("/")[0]) - 1, 0))
        except (OSError, ValueError, IndexError):
            return 0.0
        time.sleep(EVERY_S)
    return sum(counts) / len(counts)


class LoadOfOthers:
    """The load of other processes since the object was made, on the cores that this process may use."""

    def __init__(self) -> None:
        self._used_s, self._begin_s = _used_by_others_s(), time.monotonic()

    def share(self) -> float:
        """Return the share of the cores, 0 to 1, that other processes have used; 0 if unknown."""
        passed_s = (time.monotonic() - self._begin_s) * len(os.sched_getaffinity(0))
        return min(max((_used_by_others_s() - self._used_s) / passed_s, 0.0), 1.0)


def _used_by_others_s() -> float:
    """Return the processor time, in seconds, that others than this process and its children have used so far."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        rows = [line.split() for line in STAT.read_text().splitlines() if line.startswith("cpu")]
        times = [int(time) for name, *times in rows if name in names for time in (*times[:3], *times[5:8])]
    except (OSError, ValueError):
        return 0.0
    return sum(times) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])  # without idle and iowait (proc(5))
