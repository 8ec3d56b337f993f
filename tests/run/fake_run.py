"""Writes a run folder like the workers and the controller would, from a tiny simulation: no network, no waiting."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kofn_common.config.schema import Config
from kofn_common.results.folder import JobFolder, RunFolder
from kofn_common.results.worker_metrics import bitmap_of

PARAMETERS = 50


@dataclass
class FakeTrial:
    """The record of one trial; tests may change anything before write()."""

    workers: int
    lines: list[list[dict[str, Any]]]
    sums: list[dict[str, np.ndarray]]
    statuses: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    """Reason of a worker's end, if it is not the target."""


def simulate(
    *, workers: int = 4, iterations: int = 200, k: Callable[[int], int] = lambda i: 4, seed: int = 1
) -> FakeTrial:
    """Simulate a trial in which the last worker is slow until half-way, and then worker 1; it ends at 96 % accuracy."""
    random = np.random.default_rng(seed)
    clock, lines = 1_000.0, [list[dict[str, Any]]() for _ in range(workers)]
    for iteration in range(1, iterations + 1):
        means = [truth(rank, iteration, iterations, workers) for rank in range(workers)]
        blocking = 5e-3 * random.poisson(np.array(means) / 5e-3)
        block_times = 0.012 + blocking
        members = sorted(np.argsort(block_times, kind="stable")[: k(iteration)].tolist())
        duration = float(block_times[members].max() + 0.002 + 0.001 * random.random())
        for rank in range(workers):
            lines[rank].append(
                {
                    "iteration": iteration,
                    "started": clock,
                    "time": clock + duration + 1e-4 * rank,
                    "computed": True,
                    "loss": 2.3 * float(np.exp(-iteration / 40)),
                    "accuracy": 0.96 * float(1 - np.exp(-iteration / 30)) + (0.01 if iteration == iterations else 0.0),
                    "params": f"{iteration:08x}",
                    "first_block_s": float(block_times[rank]),
                    "iteration_s": duration,
                    "blocking_s": float(blocking[rank]),
                    "injected_mean_s": means[rank],
                    "k": k(iteration),
                    "count": len(members),
                    "members": bitmap_of(members),
                    "late": rank not in members,
                }
            )
        clock += duration
    return FakeTrial(workers, lines, _sums(workers, random), _statuses(lines, iterations))


def truth(rank: int, iteration: int, iterations: int, workers: int) -> float:
    """Return the injected mean blocking time in s."""
    slow = workers - 1 if iteration < iterations // 2 else 1
    return 0.06 if rank == slow else 0.001


def _sums(workers: int, random: np.random.Generator) -> list[dict[str, np.ndarray]]:
    aggregated = [random.integers(-(1 << 40), 1 << 40, PARAMETERS) for _ in range(workers)]
    residual = [random.integers(-1000, 1000, PARAMETERS) for _ in range(workers)]
    results = np.sum(aggregated, axis=0)
    return [
        {
            "gradients": one + rest,
            "aggregated": one,
            "residual": rest,
            "discarded": 0 * rest,
            "results": results.copy(),
            "received": np.ones_like(rest),
        }
        for one, rest in zip(aggregated, residual, strict=True)
    ]


def _statuses(lines: list[list[dict[str, Any]]], iterations: int) -> list[dict[str, Any]]:
    statuses = []
    for iteration in range(8, iterations, 4):
        recent = [worker[max(0, iteration - 16) : iteration] for worker in lines]
        means = [float(np.mean([line["blocking_s"] for line in worker])) for worker in recent]
        estimates = [
            {
                "rank": rank,
                "samples": "16",
                "lambda_s": mean,
                "lambda_low_s": 0.7 * mean,
                "lambda_high_s": 1.4 * mean + 1e-3,
            }
            for rank, mean in enumerate(means)
        ]
        k = lines[0][iteration]["k"]
        time_s = 0.014 + sorted(means)[k - 1]
        expected = [{"k": k, "iteration_s": time_s, "predicted_s": 1.1 * time_s, "cost": 1.0}]
        status = {
            "job": 1,
            "iteration": iteration,
            "k": k,
            "late_gradient": "merge",
            "age_weight": 0.5,
            "worker": estimates,
            "expected": expected,
            "overhead_s": 0.003,
        }
        statuses.append(status)
    return statuses


def compress(fake: FakeTrial, *, ratio: float = 0.25) -> FakeTrial:
    """Add the metrics of workers that send `ratio` of each gradient; the error falls, the residual stays."""
    for rank, lines in enumerate(fake.lines):
        for line in lines:
            line |= {
                "wire_bytes": round(4 * PARAMETERS * ratio),
                "wire_ratio": ratio,
                "ratio": 0.8,
                "width": 16,
                "gradient_norm2": 4.0,
                "error_norm": 1.0 / line["iteration"],
                "residual_norm": 1.0 + rank,
            }
    return fake


def write(folder: RunFolder, trials: list[FakeTrial]) -> None:
    """Write all files of all trials, and the configuration."""
    (job,) = folder.jobs
    folder.write_record([Config()], driver="netns")
    folder.update_record(finished=len(trials))
    folder.write_effective([Config()])
    write_job(job, trials)


def write_job(job: JobFolder, trials: list[FakeTrial]) -> None:
    """Write one job's files of all trials."""
    job.config.write_text('[run]\nname = "fake"\n')
    for entry, fake in zip(job.trials, trials, strict=True):
        entry.status.write_text("".join(json.dumps(status) + "\n" for status in fake.statuses))
        for rank in range(fake.workers):
            summary = {"bytes_sent": 1000, "bytes_received": 2000, "packets_sent": 10, "packets_received": 20}
            ending = {"summary": {**summary, "retransmissions": rank, "reason": fake.reasons.get(rank, "target")}}
            text = "".join(json.dumps(line) + "\n" for line in [*fake.lines[rank], ending])
            entry.metrics(rank).write_text(text)
            np.savez(entry.sums(rank), allow_pickle=False, **fake.sums[rank])


def two_trials(path: Path) -> RunFolder:
    """Write a good run: 'throughput' with k = 3, then 'all'."""
    folder = RunFolder.create(path, ["throughput", "all"])
    write(folder, [simulate(k=lambda i: 4 if i < 8 else 3), simulate()])
    return folder


def append(folder: RunFolder, rank: int, *lines: dict[str, object], end: str = "\n") -> None:
    """Append lines to a worker's metrics in the first job's first trial."""
    with folder.jobs[0].trials[0].metrics(rank).open("a") as file:
        file.write("\n".join(map(json.dumps, lines)) + end)
