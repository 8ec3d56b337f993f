"""What must hold exactly in every pass, whatever the timing: identical replicas, and no gradient lost or counted twice.

A check gives None, or one sentence that names the first thing that is wrong.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from run.events import killed_for_good, never_started, read_happenings
from run.folder import PassFolder
from run.metrics import WorkerMetrics

Sums = dict[str, npt.NDArray[np.int64]]

PARTS = ("gradients", "counted", "residual", "discarded", "results")
"""int64 arrays of equal length, in units of 2^-40, one element a parameter."""


def identity(workers: Sequence[WorkerMetrics]) -> str | None:
    """After every iteration that two workers both have, their parameters are bit-identical."""
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
    """What came of adding up."""

    error: str | None = None
    """The first thing that is wrong."""
    unchecked: str | None = None
    """What could not be looked at, although nothing is wrong with that."""


def conservation(folder: PassFolder, workers: int) -> Conservation:
    """gradients = counted + residual + discarded for every worker, and the sum of all counted = every worker's results.

    Who was never started has no gradients.  Of who was killed for good nobody knows what was counted, so the second
    equation is not looked at then: only whether all others applied the same results.
    """
    happenings = read_happenings(folder.events)
    ranks = [rank for rank in range(workers) if f"worker-{rank}" not in never_started(happenings)]
    killed = {rank for rank in ranks if f"worker-{rank}" in killed_for_good(happenings)}
    ranks = [rank for rank in ranks if folder.sums(rank).exists() or rank not in killed]
    if dead := [rank for rank in ranks if not folder.sums(rank).exists()]:
        return Conservation(
            error=f"conservation cannot be checked: worker {dead[0]} died and did not come back; its books are in "
            f"{folder.sums(dead[0]).with_suffix('.books')}"
        )
    try:
        sums = {rank: load_sums(folder.sums(rank)) for rank in ranks}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        return Conservation(error=f"conservation cannot be checked: {error}")
    if not sums:
        return Conservation(error="conservation cannot be checked: every worker was killed, for good")
    if gone := sorted(killed.difference(ranks)):
        return Conservation(error=_owned(sums) or _same(sums), unchecked=f"what was counted of {_names(gone)}, killed")
    return Conservation(error=_owned(sums) or _counted(sums))


def _owned(sums: Mapping[int, Sums]) -> str | None:
    """Every worker's own books."""
    for rank, parts in sums.items():
        wrong = np.flatnonzero(parts["gradients"] != parts["counted"] + parts["residual"] + parts["discarded"])
        if wrong.size:
            return f"worker {rank}: {_elements(wrong)}, its gradients are not counted + residual + discarded"
    return None


def _counted(sums: Mapping[int, Sums]) -> str | None:
    """What was counted of all is what each applied."""
    total = np.sum([parts["counted"] for parts in sums.values()], axis=0)
    for rank, parts in sums.items():
        wrong = np.flatnonzero(parts["results"] != total)
        if wrong.size:
            return f"worker {rank}: {_elements(wrong)}, the results it applied are not what all workers had counted"
    return None


def _same(sums: Mapping[int, Sums]) -> str | None:
    """All applied the same."""
    (first, reference), *others = sums.items()
    for rank, parts in others:
        wrong = np.flatnonzero(parts["results"] != reference["results"])
        if wrong.size:
            return f"workers {first} and {rank}: {_elements(wrong)}, the results they applied differ"
    return None


def load_sums(path: Path) -> Sums:
    """The five arrays of a worker; ValueError if one is missing, not int64, or of another shape."""
    with np.load(path) as file:
        missing = [name for name in PARTS if name not in file]
        if missing:
            raise ValueError(f"{path} has no array {', '.join(missing)}")
        sums = {name: file[name] for name in PARTS}
    shapes = {part.shape for part in sums.values()}
    if len(shapes) > 1 or any(part.dtype != np.int64 for part in sums.values()):
        raise ValueError(f"{path}: int64 arrays of one shape are needed, not {sorted(map(str, shapes))}")
    return sums


def _names(ranks: Sequence[int]) -> str:
    return f"worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _elements(wrong: npt.NDArray[np.intp]) -> str:
    return f"{wrong.size} elements, the first is {wrong[0]}"
