"""The load that a run finds on its machine."""

import os
import time
from pathlib import Path

LOADAVG = Path("/proc/loadavg")
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
