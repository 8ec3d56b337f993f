"""The effect of a worker's death on a training, from the trial's files."""

from itertools import pairwise

from kofn.experiments.trials import FinishedTrial, Row
from kofn.report.summarise import first_finishes
from kofn_common.results.event_log import read_event_log
from kofn_common.results.logs import tail


def death_columns(trial: FinishedTrial) -> Row:
    """Return the longest time between two iterations from a worker's death on. For a job that the death ended, return
    the time from the death to the end, and the error. Without a death there are no columns.
    """
    killed = [
        event.time for event in read_event_log(trial.folder.events) if event.action == "kill" and not event.missed
    ]
    if not killed:
        return {}
    if trial.summary.early_end:
        ended, error = _first_words(trial)
        return {"end_after_s": max(0.0, ended - killed[0]), "end_error": error}  # a kill is logged after it is done
    times = [line.time for line in first_finishes(trial.metrics())]
    return {"pause_s": max(later - earlier for earlier, later in pairwise(times) if later >= killed[0])}


def _first_words(trial: FinishedTrial) -> tuple[float, str]:
    """Return the Unix time at which the first worker ended with an error, and the error. If no worker has written an
    error, return the Unix time and the reason of the run's end."""
    found = []
    for rank in range(trial.config.job.workers):
        log, prefix = trial.folder.log(f"worker-{rank}"), f"kofn worker {rank}: "
        words = tail(log, 1).strip()
        if words.startswith(prefix):
            found.append((log.stat().st_mtime, words.removeprefix(prefix)))
    return min(found, default=(trial.folder.status.stat().st_mtime, trial.summary.early_end.split(";")[0]))
