"""What must hold exactly in every pass, whatever the timing: identical replicas, and no gradient lost or counted twice.

Each check returns None, or one sentence that names the first thing that is wrong.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from run.folder import PassFolder
from run.metrics import WorkerMetrics

Sums = dict[str, npt.NDArray[np.int64]]

PARTS = ("gradients", "counted", "residual", "results")
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


def conservation(folder: PassFolder, workers: int) -> str | None:
    """gradients = counted + residual for every worker, and the sum of all counted = every worker's results."""
    try:
        sums = [load_sums(folder.sums(rank)) for rank in range(workers)]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        return f"conservation cannot be checked: {error}"
    for rank, parts in enumerate(sums):
        wrong = np.flatnonzero(parts["gradients"] != parts["counted"] + parts["residual"])
        if wrong.size:
            return f"worker {rank}: {_elements(wrong)}, its gradients are not what was counted plus its residual"
    total = np.sum([parts["counted"] for parts in sums], axis=0)
    for rank, parts in enumerate(sums):
        wrong = np.flatnonzero(parts["results"] != total)
        if wrong.size:
            return f"worker {rank}: {_elements(wrong)}, the results it applied are not what all workers had counted"
    return None


def load_sums(path: Path) -> Sums:
    """The four arrays of a worker; ValueError if one is missing, not int64, or of another shape."""
    with np.load(path) as file:
        missing = [name for name in PARTS if name not in file]
        if missing:
            raise ValueError(f"{path} has no array {', '.join(missing)}")
        sums = {name: file[name] for name in PARTS}
    shapes = {part.shape for part in sums.values()}
    if len(shapes) > 1 or any(part.dtype != np.int64 for part in sums.values()):
        raise ValueError(f"{path}: int64 arrays of one shape are needed, not {sorted(map(str, shapes))}")
    return sums


def _elements(wrong: npt.NDArray[np.intp]) -> str:
    return f"{wrong.size} elements, the first is {wrong[0]}"
