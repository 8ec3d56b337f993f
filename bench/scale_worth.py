"""The worth of k of n with up to 100,000 workers: four tables, each by one command.

    python -m bench.scale_worth speedup      k = 0.9 n over k = n, for four laws of blocking
    python -m bench.scale_worth rules        every rule for late gradients over drop, with k = 0.7 n
    python -m bench.scale_worth rack         one slow rack of ten: any k of n, as in a tree, and k per rack, over k = n
    python -m bench.scale_worth alone        progress of n workers over that of one worker alone, by the noise scale

Figures are ratios of the progress per second (docs/explanation/scale.md): means over the seeds with 95 % intervals
(Student's). All choices of a seed meet the same blocking.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from bench.tables import Row, make_parser, say, show, whole
from kofn.experiments.engine import TaskEngine
from kofn.experiments.scale.tasks import CHOICE, LAW, SEED, WORKERS, Axes, carried_out, failed, tasks

SIZES = (10, 100, 1000, 10_000, 100_000)

LAWS = ("poisson", "exponential", "pareto", "bursty")

WORLD = """
[run]
max_iterations = 100
[policy]
late_gradient = "stash"
[model]
compute_ms = 40
[scale]
{scale}
[[straggler]]
workers = "all"
mean_ms = 10
event_ms = 1
"""

SLOW_RACK = """
[[straggler]]
workers = "rack 0"
mean_ms = 50
event_ms = 1
"""

PROGRESS = "progress_per_s"


def swept(world: str, axes: Axes, seeds: int) -> pd.DataFrame:
    """Simulate every combination, and return the rows."""
    wanted = tasks(world, {**axes, SEED: range(1, seeds + 1)})
    lines = list(TaskEngine(processes=2).in_order(carried_out, wanted, failed))
    return pd.DataFrame([line["row"] for line in lines])


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Return the geometric mean of the ratios, seed by seed, with its interval."""
    logs = np.log(np.asarray(above) / np.asarray(below))
    if len(logs) < 2:
        return f"{np.exp(logs.mean()):.2f}"
    half = special.stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / np.sqrt(len(logs))
    return f"{np.exp(logs.mean()):.2f} ({np.exp(logs.mean() - half):.2f} to {np.exp(logs.mean() + half):.2f})"


def of(found: pd.DataFrame, **values: Any) -> list[float]:
    """Return the progress of the rows with these values, seed by seed."""
    for name, value in values.items():
        found = found[found[name] == value]
    return list(found.sort_values("seed")[PROGRESS])


def speedup(seeds: int) -> list[Row]:
    """Return k = 0.9 n over k = n, by n and law."""
    world = WORLD.format(scale="")
    found = swept(world, {WORKERS: SIZES, LAW: LAWS, CHOICE: (0.9, 1.0)}, seeds).rename(columns={LAW: "law"})
    return [
        {"workers": n}
        | {
            law: ratio(of(found, workers=n, law=law, choice=0.9), of(found, workers=n, law=law, choice=1.0))
            for law in LAWS
        }
        for n in SIZES
    ]


def rules(seeds: int) -> list[Row]:
    """Return each rule's progress over drop's, by n; the noise scale is n, so that the number of gradients matters."""
    slow = '[[straggler]]\nworkers = "0-:4"\nmean_ms = 60\nevent_ms = 1\n'
    names = ("drop", "abort", "stash", "merge", "async", "batch-sync")
    rows = []
    for n in SIZES:
        world = WORLD.format(scale=f"noise_scale = {n}") + slow
        found = swept(world, {WORKERS: (n,), CHOICE: tuple(f"{name}:{n * 7 // 10}" for name in names)}, seeds)
        by_rule = {name: of(found, late_gradient=name) for name in names}
        rows.append({"workers": n} | {name: ratio(by_rule[name], by_rule["drop"]) for name in names[1:]})
    return rows


def rack(seeds: int) -> list[Row]:
    """Return k of n, k per rack and the tree over k = n, by n; the first rack of ten is slow."""
    world, rows = WORLD.format(scale="") + SLOW_RACK, []
    for n in SIZES:
        axes = {WORKERS: (n,), "job.racks": (10,), CHOICE: (1.0, 0.9), "scale.rack_share": (0.0, 0.9, 1.0)}
        found = swept(world, axes, seeds).rename(columns={"scale.rack_share": "share"})
        everyone = of(found, choice=1.0, share=0.0)
        rows.append(
            {
                "workers": n,
                "k = 0.9 n, any": ratio(of(found, choice=0.9, share=0.0), everyone),
                "0.9 of each rack": ratio(of(found, choice=0.9, share=1.0), everyone),
                "9 whole racks": ratio(of(found, choice=0.9, share=0.9), everyone),
            }
        )
    return rows


def alone(seeds: int) -> list[Row]:
    """Return the progress of n workers with k = 0.9 n over that of one worker without a network, by n and phi.

    A gradient of 100 MB takes 80 ms on a link of 10 Gbit/s.
    """
    network = "[network]\nlink_mbps = 10000\n"
    rows = []
    for phi in (0.1, 1, 10, 100, 1000, 10_000):
        world = network + WORLD.format(scale=f"noise_scale = {phi}\ngradient_mb = 100")
        one = swept(network + WORLD.format(scale=f"noise_scale = {phi}"), {WORKERS: (1,), CHOICE: (1.0,)}, seeds)
        found = swept(world, {WORKERS: (2, *SIZES), CHOICE: (0.9,)}, seeds)
        rows.append({"phi": phi} | {f"n = {n:,}": ratio(of(found, workers=n), of(one)) for n in (2, *SIZES)})
    return rows


PARTS: dict[str, Callable[[int], list[Row]]] = {"speedup": speedup, "rules": rules, "rack": rack, "alone": alone}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", type=whole(), default=3, help="from 1 on (default 3)")
    options = parser.parse_args()
    say(f"{options.part}: {options.seeds} seeds")
    show({options.part: PARTS[options.part](options.seeds)}, as_json=options.json)


if __name__ == "__main__":
    main()
