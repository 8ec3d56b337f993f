"""The cost of checkpoints: mean iteration time with them against the same training without, in turns.  Needs root.

    python bench/checkpoint.py [--pairs 4] [--iterations 60] [--every 13] [--link-mbps 600]

Two workers train ten million parameters with 8 bits an element, k = n.  With the defaults a checkpoint is made about
every ten seconds: the parameters and optimizer once, and each worker's pending gradients.  The first iterations, in
which memory is touched for the first time, are not counted.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from bench.tables import whole
from kofn.report.table import make_console
from kofn.run.plan import make_plan
from kofn.run.runner import execute
from kofn_common.config.compress import CompressSection
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import KofnError
from kofn_common.config.job import JobSection
from kofn_common.config.model import ModelSection
from kofn_common.config.network import NetworkSection
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import read_trial

PARAMETERS = (64 + 1) * 3100 + (3100 + 1) * 3100 + (3100 + 1) * 10
LEFT_OUT = 8
"""Iterations at the begin that are not counted."""


def config(iterations: int, every: int, link_mbps: float) -> Config:
    run = RunSection(
        name="checkpoint",
        trials=("all",),
        target=1.0,
        evaluate_every=iterations,
        max_iterations=iterations,
        checkpoint_every=every,
    )
    return Config(
        run=run,
        network=NetworkSection(link_mbps=link_mbps),
        job=JobSection(workers=2),
        compress=CompressSection(codec="int8"),
        model=ModelSection(hidden=(3100, 3100), batch=4),
    )


def iteration_s(given: Config, console: Console) -> tuple[float, int]:
    """Return one run's mean iteration time in seconds, and the bytes of its newest checkpoint; 0: it has none."""
    with tempfile.TemporaryDirectory(dir=".") as folder:  # on a disk: /tmp may be memory
        source = Path(folder) / "checkpoint.toml"
        source.write_text(to_toml(given))
        plan = dataclasses.replace(make_plan(source, out=Path(folder) / "run", quiet=True), check=False)
        results: RunFolder = execute(plan, console)
        entry = results.jobs[0].trials[0]
        (first, *_) = read_trial(entry, given.job.workers)
        times = [line.time for line in first.iterations[LEFT_OUT:]]
        newest = max(entry.checkpoints.glob("[0-9]*"), default=None)
        size = 0 if newest is None else sum(path.stat().st_size for path in newest.iterdir())
    return (times[-1] - times[0]) / (len(times) - 1), size


def main() -> None:
    """Measure in turns, and print the ratio."""
    options = _options()
    console, pairs, size = make_console(stderr=True), list[tuple[float, float]](), 0
    for number in range(options.pairs):
        found = dict[int, float]()
        for every in (0, options.every) if number % 2 else (options.every, 0):
            found[every], written = iteration_s(config(options.iterations, every, options.link_mbps), console)
            size = max(size, written)
        with_s, without_s = found[options.every], found[0]
        pairs.append((with_s, without_s))
        console.print(f"pair {number + 1}: {with_s:.3f} s with, {without_s:.3f} s without: {with_s / without_s:.3f}")
    ratios = [one / other for one, other in pairs]
    with_s, without_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    every_s = options.every * with_s
    print(f"{PARAMETERS:,} parameters, a checkpoint of {size / 1e6:.0f} MB every {every_s:.1f} s")
    print(f"iteration: {with_s:.3f} s with checkpoints, {without_s:.3f} s without")
    print(
        f"ratio: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f} in {len(pairs)} pairs"
    )
    print(f"at most 2 % longer: {'yes' if statistics.median(ratios) <= 1.02 else 'NO'}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=whole(), default=4)
    parser.add_argument("--iterations", type=whole(), default=60)
    parser.add_argument("--every", type=whole(), default=13)
    parser.add_argument("--link-mbps", type=float, default=600.0)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except KofnError as error:
        sys.exit(f"checkpoint: {error}")
