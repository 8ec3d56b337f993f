"""The columns of `kofn experiment codecs` in the table of trials: final accuracy, times around a link's change."""

from bisect import bisect_left
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from kofn.experiments.trials import FinishedTrial, Row
from kofn.report.summarise import first_finishes, training_start_s
from kofn_common.results.event_log import read_event_log


def own_columns(trial: FinishedTrial) -> Row:
    """Return this experiment's columns. Raise RunError if a worker's file is missing."""
    metrics = trial.metrics()
    finished = first_finishes(metrics)
    times = [line.time for line in finished]
    changes = [
        entry.time for entry in read_event_log(trial.folder.events) if entry.action == "link" and not entry.missed
    ]
    changed_in = 1 + bisect_left(times, changes[0]) if changes and changes[0] <= times[-1] else None
    iteration_s = np.diff([training_start_s(metrics), *times]).tolist()
    return {"final_accuracy": finished[-1].accuracy or 0.0, **change_columns(iteration_s, changed_in)}


def change_columns(iteration_s: Sequence[float], changed_in: int | None) -> Row:
    """Return iteration times around the change of a link's rate in iteration `changed_in`, counted from 1.

    `before_s` is the median time of the iterations before the change: a median, because the first iteration includes
    preparations. `change_s` is the time of the iteration with the change. `after_s` is the mean time of the iterations
    afterwards.
    """
    at = changed_in or 1
    before, after = iteration_s[: at - 1], iteration_s[at:] if changed_in else []
    return {
        "before_s": median(before) if before else None,
        "change_s": iteration_s[at - 1] if changed_in else None,
        "after_s": fmean(after) if after else None,
    }
