"""Training of one worker alone: the baseline for sums over several workers.

The worker trains the same model on all of the data, with rank 0's blocking, and sends nothing.  `kofn run` starts it
together with the last trial of a configuration with run.alone; kofn/sim/ calls train() with a virtual clock.

    python -m kofn_host.training.alone --config effective.toml --metrics alone/worker-0.jsonl
"""

import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from msgspec.structs import replace

from kofn_common import wall_clock
from kofn_common.config.schema import Config
from kofn_host.compression.plan import Planner
from kofn_host.training.metrics import Metrics
from kofn_host.workload.replica import Replica
from kofn_host.workload.straggler_source import load_stragglers
from kofn_host.workload.workload import load_workload, metric_of


def train(config: Config, metrics: Metrics, now: Callable[[], float], wait_until: Callable[[float], None]) -> None:
    """Train to the metric's target or the last iteration, and write a line for each iteration.

    `now` returns the time in seconds since the epoch; `wait_until` waits until a given time in the same unit.
    """
    stragglers, config = load_stragglers(config, 0), alone(config)
    workload, metric = load_workload(config, 0), metric_of(config)
    plan = Planner(blocks=1, widths=(32,)).first()
    replica, begun = Replica(workload, config, 0, plan), now()
    for iteration in range(1, config.run.max_iterations + 1):
        started = now()
        loss, gradient = workload.gradient(iteration, 0)
        blocking_s = stragglers.blocking_s(iteration, 0, started - begun)
        wait_until(started + stragglers.compute_s(iteration) + blocking_s)
        first_block_s = now() - started
        evaluation = replica.apply(iteration, gradient, np.zeros(0, np.int64), plan)
        ended = now()
        metrics.write(
            iteration=iteration,
            started=started,
            time=ended,
            loss=loss,
            accuracy=evaluation.accuracy,
            params=evaluation.params,
            first_block_s=first_block_s,
            iteration_s=ended - started,
            blocking_s=blocking_s,
            injected_mean_s=stragglers.mean_s(iteration),
            k=1,
            count=1,
            members="0x1",
        )
        if metric is not None and metric.reached(evaluation.accuracy):
            break


def alone(config: Config) -> Config:
    """Return the configuration of a job with one worker, which has all of the data."""
    model = replace(config.model, dirichlet=None)
    return replace(config, job=replace(config.job, workers=1), model=model, shard=())


def _sleep_until(end: float) -> None:
    time.sleep(max(0.0, end - wall_clock.now()))


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True, help="The run's effective.toml.")
@click.option("--metrics", type=click.Path(path_type=Path), required=True, help="File for one JSON line per iteration.")
def command(*, config: Path, metrics: Path) -> None:
    """Train one worker alone, without a network."""
    with Metrics(metrics) as lines:
        train(Config.load(config), lines, wall_clock.now, _sleep_until)


if __name__ == "__main__":
    command()
