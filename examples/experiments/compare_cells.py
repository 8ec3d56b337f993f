"""Cells, replayed gradients, columns and claims of compare.toml and compare-torch.toml."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from statistics import median

import numpy as np

from kofn import Workload
from kofn.experiments.claims import Verdict
from kofn.experiments.experiment_file import Point
from kofn.experiments.reader import Experiment, FinishedTrial
from kofn.report.iteration_costs import LinkMeans, mean_parts_s, reduce_s, worker_iteration_s
from kofn.report.summarise import first_finishes
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.schema import Config
from kofn_common.results.worker_metrics import TIME_PARTS, WorkerMetrics
from kofn_host.arrays import Floats
from kofn_host.training import load_codecs
from kofn_host.workload import Momentum, Perceptron, load_shard

GRADIENTS = 4
"""The number of gradients, of successive iterations, that are replayed."""

SEED, BATCH, RATE, MOMENTUM = 1, 32, 0.01, 0.9
"""The training whose gradients are replayed."""

GPT_ELEMENTS = 10_868_992
"""The parameters of the script of compare-torch.toml."""

UNLIMITED, REFERENCE = "unlimited", "full-int32"
"""The links that set no limit, and the only contender that is run on them."""

TRAINED = "digits"
"""The model whose gradients are computed, not replayed."""

HEADROOM = 1.25
"""The least ratio of an iteration's time to its time on unlimited links; with less, the machine is the limit."""

OFF = 0.05
"""The permitted relative error of the sum of an iteration's parts."""


class Replayed(Workload):
    """Gradients of the perceptron with `model.hidden` on digits, which are computed once, at the start.

    Worker r gives gradient (iteration - 1 + r) modulo GRADIENTS. The parameters are zeros, and are not evaluated.
    """

    metric = None

    def __init__(self, config: Config, rank: int) -> None:
        self._rank, self._gradients = rank, gradients(config.model.hidden)
        self.parameters: Floats = np.zeros_like(self._gradients[0])

    def gradient(self, iteration: int, batch: int = 0) -> tuple[None, Floats]:
        return None, self._gradients[(iteration - 1 + self._rank) % len(self._gradients)]


@cache
def gradients(hidden: tuple[int, ...]) -> Sequence[Floats]:
    """Return the gradients of the first iterations of a training by one worker, shape (elements,)."""
    shard, perceptron = load_shard(0, 1, SEED), Perceptron(hidden, SEED)
    optimizer, found = Momentum(perceptron.parameters, rate=RATE, momentum=MOMENTUM), []
    for iteration in range(1, GRADIENTS + 1):
        _, gradient = perceptron.gradient(shard.batch(iteration, BATCH))
        gradient.setflags(write=False)
        optimizer.step(gradient)
        found.append(gradient)
    return found


def possible(points: Sequence[Point]) -> list[Point]:
    """Return the points whose collective is installed; on unlimited links only those that measure this machine."""
    return [point for point in points if _installed(point) and _own(point) and _wanted(point)]


def _installed(point: Point) -> bool:
    return not load_collective(point.document["job"].get("collective", "switch")).missing()


def _own(point: Point) -> bool:
    """Return whether the model is `own` if a folder of gradients is given, and another model if not."""
    return (point.axes.get("model") == "own") == ("replay" in point.document["model"])


def _wanted(point: Point) -> bool:
    if point.axes["link"] != UNLIMITED:
        return True
    return point.contender == REFERENCE and point.axes["straggler"] == "none" and point.axes["model"] != TRAINED


def columns(trial: FinishedTrial) -> dict[str, object]:
    """Return columns of times, and the bytes of a gradient, of links and of memory.

    `gradient_bytes` is the size of an encoded gradient without headers, and `limit_s` its time at the link's rate: the
    link's limit. The other times are those of time_columns().
    """
    summary, config = trial.summary, trial.config
    memory = summary.memory
    elements = memory.parameters // 4 if memory and config.torch.script is None else GPT_ELEMENTS
    size = elements * width(config) // 8
    mbps = None if trial.cell.point.axes["link"] == UNLIMITED else config.network.link_mbps
    return {
        "gradient_bytes": size,
        **time_columns(trial.metrics(), 8e-6 * size / mbps if mbps else None),
        **asdict(LinkMeans.of(summary.link_bytes, config.job.workers, summary.iterations)),
        "memory_bytes": memory and memory.total,
    }


def width(config: Config) -> int:
    """Return the bits of an element on the wire."""
    ledger = load_collective(config.job.collective).ledger
    return max(load_codecs(config.compress.codec, workers=config.job.workers)) if ledger else 32


def time_columns(workers: Sequence[WorkerMetrics], limit_s: float | None) -> dict[str, float | None]:
    """Return columns of time, without the first iteration, which has cold caches and unknown links.

    `iteration_s` is the median time from an iteration's end, at the first worker to finish, to the next iteration's
    end. `reduce_s` is the median time of an all-reduce. TIME_PARTS are the mean parts of an iteration's time.
    `worker_iteration_s` is the mean time of an iteration by the workers' clocks; the parts add up to this time, with
    the relative error `parts_off`. `times_limit` is `iteration_s` divided by the link's limit.
    """
    mean_s = worker_iteration_s(workers)
    iteration_s = median(np.diff([line.time for line in first_finishes(workers)]).tolist() or [mean_s])
    parts_s = mean_parts_s(workers) or dict.fromkeys(TIME_PARTS, 0.0)
    return {
        "iteration_s": iteration_s,
        "reduce_s": reduce_s(workers),
        **parts_s,
        "worker_iteration_s": mean_s,
        "parts_off": math.fsum(parts_s.values()) / mean_s - 1,
        "limit_s": limit_s,
        "times_limit": iteration_s / limit_s if limit_s else None,
        "goodput_share": limit_s / iteration_s if limit_s else None,
    }


def links_are_the_limit(experiment: Experiment) -> Iterator[Verdict]:
    """Compare iterations of the reference at each rate with those on unlimited links; geometric means over seeds."""
    rows = experiment.summary
    rows = rows[(rows["contender"] == REFERENCE) & (rows["straggler"] == "none") & (rows["model"] != TRAINED)]
    for (model, workers), several in rows.groupby(["model", "job.workers"], sort=False):
        logs = np.log(several["iteration_s"].astype(float))
        times = np.exp(logs.groupby(several["link"], sort=False).mean()).to_dict()
        free_s = times.pop(UNLIMITED, None)
        for link, time_s in times.items():
            claim = f"{model}, {workers} workers: links of {link} are the limit, not this machine"
            if free_s is None:
                yield Verdict(claim=claim, holds=None, numbers=f"needs runs of {REFERENCE} with link = {UNLIMITED}")
                continue
            yield Verdict(
                claim=claim,
                holds=time_s >= HEADROOM * free_s,
                numbers=f"{REFERENCE} takes {1e3 * time_s:.1f} ms, on unlimited links {1e3 * free_s:.1f} ms",
            )


def parts_add_up(experiment: Experiment) -> Iterator[Verdict]:
    """Check that the parts of an iteration add up to the iteration's time in every run."""
    rows = experiment.summary
    off = rows["parts_off"].astype(float)
    worst = rows.loc[off.abs().idxmax()]
    names = ", ".join(str(worst[name]) for name in experiment.by)
    yield Verdict(
        claim=f"the parts of an iteration's time add up to it within {OFF:.0%} in every run",
        holds=bool(off.abs().max() <= OFF),
        numbers=f"{(off.abs() <= OFF).sum()} of {len(off)} runs; furthest off is {names}, seed {worst['seed']}, by"
        f" {worst['parts_off']:+.1%}",
    )
