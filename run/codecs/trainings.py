"""From a finished run's files to what `kofn experiment codecs` looks at."""

from bisect import bisect_left

import numpy as np

from run.codecs.evidence import Training
from run.events import read_happenings
from run.matrix import Result
from run.metrics import read_pass
from run.summarise import first_finishes, start


def read_training(result: Result) -> Training:
    """Of a run with one pass; RunError if a worker's file is missing."""
    (folder,), (summary,) = result.cell.job().passes, result.passes
    config = result.cell.config
    metrics = read_pass(folder, config.job.workers)
    finished = first_finishes(metrics)
    times = [line.time for line in finished]
    changes = [entry.time for entry in read_happenings(folder.events) if entry.action == "link" and not entry.missed]
    return Training(
        seed=result.cell.seed,
        summary=summary,
        accuracy=finished[-1].accuracy or 0.0,
        iteration_s=tuple(float(time_s) for time_s in np.diff([start(metrics), *times])),
        changed_in=1 + bisect_left(times, changes[0]) if changes and changes[0] <= times[-1] else None,
    )
