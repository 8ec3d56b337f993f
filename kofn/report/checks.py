"""The checks of every trial, whatever its timing: identical replicas, and no gradient lost or aggregated twice.

A check returns None, or one sentence that names the first fault.
"""

import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kofn.results.event_log import killed_for_good, never_started, read_event_log
from kofn.results.folder import TrialFolder
from kofn.results.ranks import name_workers
from kofn.results.worker_metrics import WorkerMetrics

Sums = dict[str, npt.NDArray[np.int64]]

PARTS = ("gradients", "aggregated", "residual", "discarded", "results", "received")
"""int64 arrays of equal length, with a checksum of the values of each block. The checksum is linear."""


def identity(workers: Sequence[WorkerMetrics]) -> str | None:
    """Compare the parameters after every iteration that two workers have: they must be bit-identical."""
    digests: dict[int, tuple[int, str]] = {}
    differing: list[tuple[int, int, int]] = []
    for worker in workers:
        for line in worker.iterations:
            rank, digest = digests.setdefault(line.iteration, (worker.rank, line.params))
            if digest != line.params:
                differing.append((line.iteration, rank, worker.rank))
    if not differing:
        return None
    iteration, one, other = min(differing)
    return f"replicas differ: first after iteration {iteration}, workers {one} and {other}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conservation:
    """The result of the check that no gradient is lost."""

    error: str | None = None
    """The first fault."""
    unchecked: str | None = None
    """The part that could not be checked, which is no fault."""


def conservation(folder: TrialFolder, workers: int, left: Mapping[int, str] | None = None) -> Conservation:
    """Check that gradients = aggregated + residual + discarded for every worker, and that the sum of all aggregated is
    every worker's results.

    `left`: the last iteration of each worker that left before the others, by rank ("20 of 25"). The results of such a
    worker are not checked. A worker that was never started has no gradients. If a worker was killed for good, its
    aggregated gradients are unknown: then the second check is only that all others applied the same results.
    """
    events = read_event_log(folder.events)
    ranks = [rank for rank in range(workers) if f"worker-{rank}" not in never_started(events)]
    killed = {rank for rank in ranks if f"worker-{rank}" in killed_for_good(events)}
    ranks = [rank for rank in ranks if folder.sums(rank).exists() or rank not in killed]
    if dead := [rank for rank in ranks if not folder.sums(rank).exists()]:
        return Conservation(
            error=f"conservation cannot be checked: worker {dead[0]} died and did not come back; its ledger is in "
            f"{folder.sums(dead[0]).with_suffix('.ledger')}"
        )
    try:
        sums = {rank: load_sums(folder.sums(rank)) for rank in ranks}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        return Conservation(error=f"conservation cannot be checked: {error}")
    if not sums:
        return Conservation(error="conservation cannot be checked: every worker was killed, for good")
    if gone := sorted(killed.difference(ranks)):
        return Conservation(
            error=_owned(sums) or _same(sums), unchecked=f"what was aggregated of {name_workers(gone)}, killed"
        )
    left = left or {}
    return Conservation(error=_owned(sums) or _aggregated(sums, left), unchecked=_left(left))


def _owned(sums: Mapping[int, Sums]) -> str | None:
    for rank, parts in sums.items():
        wrong = np.flatnonzero(parts["gradients"] != parts["aggregated"] + parts["residual"] + parts["discarded"])
        if wrong.size:
            return f"worker {rank}: {_blocks(wrong)}, its gradients are not aggregated + residual + discarded"
    return None


def _left(left: Mapping[int, str]) -> str | None:
    if not left:
        return None
    rank, iteration = min(left.items())
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return (
        f"the results of worker {rank}{more}, which left after iteration {iteration}: fewer batches than the others?"
        " DDP's join() gives zeros in their place"
    )


def _aggregated(sums: Mapping[int, Sums], left: Collection[int]) -> str | None:
    """Compare what all workers had aggregated with the results of each worker, for the blocks that it received. Some
    worker must have received each block."""
    total = np.sum([parts["aggregated"] for parts in sums.values()], axis=0)
    nobodys = np.flatnonzero(np.sum([parts["received"] for parts in sums.values()], axis=0) == 0)
    if nobodys.size:
        return f"{_blocks(nobodys)}, come to no worker"
    for rank, parts in sums.items():
        wrong = np.flatnonzero((parts["results"] != total) & (parts["received"] != 0))
        if wrong.size and rank not in left:
            return f"worker {rank}: {_blocks(wrong)}, the results it applied are not what all workers had aggregated"
    return None


def _same(sums: Mapping[int, Sums]) -> str | None:
    (first, reference), *others = sums.items()
    for rank, parts in others:
        both = (parts["received"] != 0) & (reference["received"] != 0)
        wrong = np.flatnonzero((parts["results"] != reference["results"]) & both)
        if wrong.size:
            return f"workers {first} and {rank}: {_blocks(wrong)}, the results they applied differ"
    return None


def load_sums(path: Path) -> Sums:
    """Return the arrays of a worker. ValueError if one is missing, is not int64, or has another shape."""
    with np.load(path) as file:
        missing = [name for name in PARTS if name not in file]
        if missing:
            raise ValueError(f"{path} has no array {', '.join(missing)}")
        sums = {name: file[name] for name in PARTS}
    shapes = {part.shape for part in sums.values()}
    if len(shapes) > 1 or any(part.dtype != np.int64 for part in sums.values()):
        raise ValueError(f"{path}: int64 arrays of one shape are needed, not {sorted(map(str, shapes))}")
    return sums


def _blocks(wrong: npt.NDArray[np.intp]) -> str:
    return f"{wrong.size} blocks, the first is {wrong[0]}"
