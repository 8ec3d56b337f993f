"""The checks of every trial: replicas are identical, and no gradient is lost or aggregated twice.

A fault is one sentence about the first place where a check fails.
"""

import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kofn_common.results.event_log import killed_for_good, never_started, read_event_log
from kofn_common.results.folder import TrialFolder
from kofn_common.results.ranks import name_workers
from kofn_common.results.worker_metrics import WorkerMetrics

Sums = dict[str, npt.NDArray[np.int64]]

PARTS = ("gradients", "aggregated", "residual", "discarded", "results", "received")
"""The arrays of a worker's sums file: int64, one element for each block. All but `received` are linear checksums of the
block's values; `received` is 1 for the blocks whose sums this worker gets, otherwise 0."""


def identity(workers: Sequence[WorkerMetrics]) -> str | None:
    """Compare the workers' parameters after each iteration, and return the first fault: they must be bit-identical."""
    digests: dict[int, tuple[int, str]] = {}
    differing: list[tuple[int, int, int]] = []
    for worker in workers:
        for line in worker.iterations:
            rank, digest = digests.setdefault(line.iteration, (worker.rank, line.params))
            if digest != line.params:
                differing.append((line.iteration, rank, worker.rank))
    if not differing:
        return None
    iteration, *ranks = min(differing)
    return f"replicas differ: first after iteration {iteration}, workers {ranks[0]} and {ranks[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conservation:
    """The result of conservation()."""

    error: str | None = None
    """The first fault; None if there is none."""
    unchecked: str | None = None
    """The part that could not be checked, which is no fault; None if everything was checked."""


def conservation(folder: TrialFolder, workers: int, left: Mapping[int, str] | None = None) -> Conservation:
    """Check that gradients = aggregated + residual + discarded at every worker, and that each worker applied the sum of
    all workers' aggregated gradients.

    `left` has the last iteration of each worker that left before the others, by rank ("20 of 25"). The results that a
    worker in `left` applied are not compared with that sum. A worker that was never started has no gradients. If a
    worker was killed for good and has no sums file, its aggregated gradients are unknown. The second check is then that
    all other workers, also those in `left`, applied the same results.
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
        return Conservation(error="conservation cannot be checked: every worker was killed or never started")
    if gone := sorted(killed.difference(ranks)):
        return Conservation(
            error=_owned(sums) or _same(sums), unchecked=f"the aggregated gradients of {name_workers(gone)} (killed)"
        )
    left = left or {}
    return Conservation(error=_owned(sums) or _aggregated(sums, left), unchecked=_left(left))


def _owned(sums: Mapping[int, Sums]) -> str | None:
    for rank, parts in sums.items():
        wrong = np.flatnonzero(parts["gradients"] != parts["aggregated"] + parts["residual"] + parts["discarded"])
        if wrong.size:
            return f"worker {rank}: gradients are not aggregated + residual + discarded in {_blocks(wrong)}"
    return None


def _left(left: Mapping[int, str]) -> str | None:
    if not left:
        return None
    rank, iteration = min(left.items())
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return (
        f"the results of worker {rank}{more}, which left after iteration {iteration}; its log says why. A worker with"
        " fewer batches than the others contributes zeros with DDP's join()"
    )


def _aggregated(sums: Mapping[int, Sums], left: Collection[int]) -> str | None:
    """Compare the sum of all workers' aggregated gradients with each worker's results, in the blocks that the worker
    gets. At least one worker must get each block."""
    total = np.sum([parts["aggregated"] for parts in sums.values()], axis=0)
    unreceived = np.flatnonzero(np.sum([parts["received"] for parts in sums.values()], axis=0) == 0)
    if unreceived.size:
        return f"no worker gets the sums of {_blocks(unreceived)}"
    for rank, parts in sums.items():
        wrong = np.flatnonzero((parts["results"] != total) & (parts["received"] != 0))
        if wrong.size and rank not in left:
            return f"worker {rank}: the applied results are not the sum of all aggregated gradients in {_blocks(wrong)}"
    return None


def _same(sums: Mapping[int, Sums]) -> str | None:
    (first, reference), *others = sums.items()
    for rank, parts in others:
        both = (parts["received"] != 0) & (reference["received"] != 0)
        wrong = np.flatnonzero((parts["results"] != reference["results"]) & both)
        if wrong.size:
            return f"workers {first} and {rank}: the applied results differ in {_blocks(wrong)}"
    return None


def load_sums(path: Path) -> Sums:
    """Return the arrays of a worker by name. Raise ValueError if an array is missing or is not int64, or if the shapes
    differ."""
    with np.load(path) as file:
        missing = [name for name in PARTS if name not in file]
        if missing:
            raise ValueError(f"{path} has no array {', '.join(missing)}")
        sums = {name: file[name] for name in PARTS}
    kinds = {f"{part.dtype}{list(part.shape)}" for part in sums.values()}
    if len(kinds) > 1 or any(part.dtype != np.int64 for part in sums.values()):
        raise ValueError(f"{path}: all arrays must be int64 and of one shape, got {', '.join(sorted(kinds))}")
    return sums


def _blocks(wrong: npt.NDArray[np.intp]) -> str:
    return f"{wrong.size} blocks (first: {wrong[0]})"
