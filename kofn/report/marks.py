"""Changes in a trial, for its figures: interventions, and the configuration's planned changes."""

from bisect import bisect_left
from collections.abc import Sequence

from kofn.report.figures import Mark
from kofn.report.interventions import Intervention
from kofn.report.outages import Outages
from kofn.report.planned_changes import fault_changes, straggler_changes
from kofn.report.summarise import first_finishes, training_start_s
from kofn_common.config.schema import Config
from kofn_common.results.worker_metrics import WorkerMetrics

NONE = Outages()


def read_marks(
    config: Config, interventions: Sequence[Intervention], workers: Sequence[WorkerMetrics], outages: Outages = NONE
) -> tuple[Mark, ...]:
    """Return the changes during the trial, in the order of time; the workers' lines are without the `outages`."""
    finished, begin = first_finishes(workers), training_start_s(workers)
    ends_s = [line.time - begin for line in finished]
    changed = [
        Mark(words=change.words, iteration=change.iteration, time_s=outages.cut_time(change.time) - begin)
        for change in interventions
    ]
    for iteration, words in straggler_changes(config):
        if iteration <= len(ends_s):
            changed.append(Mark(words=words, iteration=iteration - 1, time_s=ends_s[iteration - 2]))
    for time_s, words in fault_changes(config.fault):
        if 0 < time_s <= ends_s[-1]:
            changed.append(Mark(words=words, iteration=bisect_left(ends_s, time_s), time_s=time_s))
    return tuple(sorted(changed, key=lambda mark: mark.time_s))
