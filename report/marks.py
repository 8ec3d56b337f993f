"""What changed in a trial, for its figures: interventions, and what the configuration has for later."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from kofn.config.schema import Config
from kofn.report.figures import Mark
from kofn.report.interventions import Intervention
from kofn.report.summarise import first_finishes, start
from kofn.results.ranks import name_workers
from kofn.results.worker_metrics import WorkerMetrics


def read_marks(
    config: Config, interventions: Sequence[Intervention], workers: Sequence[WorkerMetrics]
) -> tuple[Mark, ...]:
    """In the order of time; what was to come after the trial's end is left out."""
    finished, begin = first_finishes(workers), start(workers)
    ends_s = [line.time - begin for line in finished]
    changed = [Mark(words=one.words, iteration=one.iteration, time_s=one.time - begin) for one in interventions]
    for iteration, words in _from_iterations(config):
        if iteration <= len(ends_s):
            changed.append(Mark(words=words, iteration=iteration - 1, time_s=ends_s[iteration - 2]))
    for time_s, words in _from_times(config):
        if time_s <= ends_s[-1]:
            changed.append(Mark(words=words, iteration=bisect_left(ends_s, time_s), time_s=time_s))
    return tuple(sorted(changed, key=lambda mark: mark.time_s))


def _from_iterations(config: Config) -> Iterator[tuple[int, str]]:
    """The first iteration of each later [[straggler]]."""
    for entry in config.straggler:
        if entry.from_iteration > 1:
            yield entry.from_iteration, f"{name_workers(entry.workers)} blocked {entry.mean_ms:g} ms on average"


def _from_times(config: Config) -> Iterator[tuple[float, str]]:
    """Beginning and end of each [[fault]] that is not always in force, seconds."""
    for number, fault in enumerate(config.fault, 1):
        whose = "all workers" if fault.workers is None else name_workers(fault.workers)
        if fault.from_s > 0:
            yield fault.from_s, f"fault {number} begins ({whose})"
        if fault.until_s < float("inf"):
            yield fault.until_s, f"fault {number} ends ({whose})"
