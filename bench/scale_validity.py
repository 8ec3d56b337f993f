"""The simulation by iterations (`kofn simulate --scale`) beside that by packets (`--times`), with the same blocking.

    python -m bench.scale_validity                          16 to 1,008 workers: about ten minutes
    python -m bench.scale_validity --workers 16 --seeds 2 --json

Above 64 workers there is a tree of switches. Figures are `--scale` over `--times`, geometric means over the seeds with
the range of all seeds: the mean of the iteration time and three of its quantiles. For `throughput`, `k` is the last k
of both simulations, seed by seed, and `step` the distance between the ks of a forecast. The last lines are verdicts:
quantiles within 5 %, ks within one step. Progress goes to stderr.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from rich.console import Console

from bench.tables import Row, make_parser, say, show, whole
from kofn.sim.costs import Costs
from kofn.sim.runner import simulate_times
from kofn.sim.scale.simulation import DECIDE_S, JITTER_S, simulate_scale
from kofn.sim.times import SimulatedTimes
from kofn_common.config.schema import Config
from kofn_controller.policy.prediction import KS

SIZES = {16: 1, 64: 1, 256: 4, 1008: 16}
"""Racks by number of workers."""

WORK = 60_000
"""Workers x iterations of a simulation by packets; the number of iterations has bounds, too."""

LEAST, MOST = 60, 600

FIELDS = {"mean": "mean_iteration_s", "5 %": "q05_s", "50 %": "q50_s", "95 %": "q95_s"}

WITHIN = 0.05

CONFIG = """
[network]
link_mbps = 100000
[policy]
late_gradient = "{rule}"
[model]
compute_ms = 40
[[straggler]]
workers = "all"
mean_ms = 20
event_ms = 1
law = "{law}"
[[straggler]]
workers = "0-{last}:5"
mean_ms = 60
event_ms = 1
law = "{law}"
"""

SHOCK = '[[shock]]\nworkers = "0-{last}"\nblocking_ms = 50\nfor_ms = 300\nshare = 0.3\n'
"""The first quarter of the workers, at the same times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValiditySetting:
    """A world, a rule, and a number of workers."""

    workers: int
    law: str
    rule: str

    def config(self, seed: int) -> Config:
        world = CONFIG.format(
            rule=self.rule, law="poisson" if self.law == "shocks" else self.law, last=self.workers - 1
        )
        if self.law == "shocks":
            world += SHOCK.format(last=self.workers // 4 - 1)
        iterations = int(np.clip(WORK // self.workers, LEAST, MOST))
        job = {"workers": self.workers, "racks": SIZES[self.workers]}
        return Config.parse(world, {"job": job, "run": {"seed": seed, "max_iterations": iterations}})

    def both(self, name: str, seed: int) -> tuple[SimulatedTimes, SimulatedTimes]:
        """Return the times by packets and by iterations."""
        config = self.config(seed)
        (packets,) = simulate_times(
            replace(config, run=replace(config.run, trials=(name,))), COSTS, Console(quiet=True)
        )
        (found,) = simulate_scale(config, name, lambda iteration, virtual_s: None)
        return packets, found

    def row(self, name: str, seeds: range) -> Row:
        pairs = [self.both(name, seed) for seed in seeds]
        row: Row = {"workers": self.workers, "racks": SIZES[self.workers], "law": self.law, "objective": name}
        for heading, field in FIELDS.items():
            row[heading] = _ratio([getattr(found, field) / getattr(packets, field) for packets, found in pairs])
        row["k"] = " ".join(f"{packets.k}/{found.k}" for packets, found in pairs) if name == "throughput" else ""
        row["step"] = max(self.workers // KS, 1)
        row["faster"] = sum(packets.wall_s for packets, _ in pairs) / sum(found.wall_s for _, found in pairs)
        return row


COSTS = Costs(
    cores=0,
    wake_s=JITTER_S / 4,
    encode_s=0,
    packet_s=0,
    switch_s=0,
    apply_s=0,
    report_s=0,
    take_s=0,
    decide_s=DECIDE_S,
)
"""Nothing but wake-ups, two for each gradient, and decisions."""


def _ratio(ratios: list[float]) -> str:
    mean = float(np.exp(np.mean(np.log(ratios))))
    return f"{mean:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def settings(workers: int) -> list[tuple[ValiditySetting, str]]:
    """Return every setting and objective with `workers` workers."""
    tree, ks = SIZES[workers] > 1, (workers // 2, round(0.9 * workers))
    rules = ("stash", "abort") if tree else ("merge", "async", "batch-sync", "abort")
    found = [(ValiditySetting(workers=workers, law="poisson", rule=rule), f"{rule}:{k}") for rule in rules for k in ks]
    base = rules[0]
    found += [(ValiditySetting(workers=workers, law="poisson", rule=base), name) for name in ("all", "throughput")]
    others = ("pareto", "bursty", "shocks")
    return found + [
        (ValiditySetting(workers=workers, law=law, rule=base), name)
        for law in others
        for name in (f"{base}:{ks[1]}", "throughput")
    ]


def verdicts(rows: list[Row]) -> list[str]:
    """Return a line for each claim, with its verdict."""
    lines = []
    for heading in FIELDS:
        off = [abs(float(str(row[heading]).split()[0]) - 1) for row in rows if row["objective"] != "throughput"]
        far = sum(each > WITHIN for each in off)
        lines.append(
            f"{'NO ' if far else 'yes'} {heading} of fixed choices within 5 %: worst {max(off):.1%}, {far} beyond"
        )
    chosen = [row for row in rows if row["objective"] == "throughput"]
    ks = [(*map(int, pair.split("/")), int(row["step"])) for row in chosen for pair in str(row["k"]).split()]
    far = sum(abs(one - other) > step for one, other, step in ks)
    lines.append(f"{'NO ' if far else 'yes'} chosen k within one step: {len(ks) - far} of {len(ks)}")
    return lines


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=whole(), choices=SIZES, nargs="+", default=[*SIZES])
    parser.add_argument("--seeds", type=whole(), default=3, help="from 1 on (default 3)")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for workers in options.workers:
        for setting, name in settings(workers):
            say(f"{workers} workers, {setting.law}, {name}")
            rows.append(setting.row(name, range(1, options.seeds + 1)))
    show({"--scale / --times": rows}, as_json=options.json)
    if not options.json:
        print("\n".join(verdicts(rows)))


if __name__ == "__main__":
    main()
