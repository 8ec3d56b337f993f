"""Slow racks: the controller's choice of k against fixed ks, and against a k of each rack, in hindsight.

    python -m bench.racks                       16 workers in 4 racks, 64 in 8: some minutes
    python -m bench.racks --seeds 2 --json

The control loop chooses in virtual time. An iteration ends with its k-th worker (late gradients: `abort`), and all
choices see the same blocking. Figures are times for n gradients over those of `best k`, the fixed k with the least mean
over the seeds; geometric means over the seeds, 95 % intervals in brackets. `racks unknown` is the choice of a
controller to which all workers are one rack. Progress goes to stderr, the table to stdout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from bench.cluster import Cluster, cluster
from bench.tables import Row, make_parser, say, show, whole
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.objective import Objective

OWN_S, RACK_S = 0.005, 0.050
"""Mean blocking of each worker, and the additional one while its rack is slow."""

ITERATIONS, BURN_IN = 300, 32

SIZES = ((4, 4), (8, 8))
"""Numbers of racks, and of workers in each."""

States = Callable[[np.random.Generator, int], BoolArray]
"""Returns in which of ITERATIONS iterations each rack is slow (racks, ITERATIONS)."""


def slow(share: float, *, only: int | None = None) -> States:
    """Return states of racks that are slow in a `share` of the iterations; `only` the first ones, None: all."""

    def states(random: np.random.Generator, racks: int) -> BoolArray:
        found = random.random((racks, ITERATIONS)) < share
        if only is not None:
            found[only:] = False
        return found

    return states


WORLDS: dict[str, States] = {
    "one rack, 30 %": slow(0.3, only=1),
    "two racks, 30 %": slow(0.3, only=2),
    "each rack, 15 %": slow(0.15),
    "no rack": slow(0.0),
}
"""The slow racks, and the share of the iterations in which they are slow."""


def law_costs(forecast: Forecast) -> FloatArray:
    """Return E_k[T] n / k by the law in force; under `abort` the prediction is E_k[T]."""
    return forecast.predicted_s * forecast.workers / forecast.ks


LAW = Objective(name="law", costs=law_costs, unit="s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RackWorld:
    """A world with racks of `size` workers each, ranks rack-major."""

    world: str
    racks: int
    size: int

    @property
    def workers(self) -> int:
        return self.racks * self.size

    def cluster(self, seed: int, racks: int = 1) -> Cluster:
        """Return workers that are about to begin, for a controller that knows `racks` racks; their blocking does not
        depend on k.
        """
        states = WORLDS[self.world](np.random.default_rng([seed, 1]), self.racks)
        return cluster(
            lambda rank, iteration: OWN_S + RACK_S * states[rank // self.size, iteration - 1],
            workers=self.workers,
            seed=seed,
            racks=racks,
            late_gradient="abort",
        )

    def drawn_s(self, seed: int) -> FloatArray:
        """Return all times (iterations, racks, size) after the first BURN_IN iterations."""
        running = self.cluster(seed)
        times_s = [running.draw(iteration) for iteration in range(1, ITERATIONS + 1)]
        return np.array(times_s[BURN_IN:]).reshape(-1, self.racks, self.size)

    def chosen_s(self, seed: int, racks: int) -> float:
        """Return the time for n gradients if the control loop chooses k and knows `racks` racks."""
        running, gradients, begin_s = self.cluster(seed, racks), 0, 0.0
        running.looking = False
        running.control_loop.chooser.follow(LAW)
        for iteration in range(1, ITERATIONS + 1):
            if iteration == BURN_IN + 1:
                gradients, begin_s = 0, running.now_s
            gradients += running.control_loop.k
            running.iterate(iteration)
            running.control_loop.choose(running.now_s)
        return (running.now_s - begin_s) * self.workers / gradients

    def of_each_k(self, times_s: FloatArray) -> FloatArray:
        """Return the time for n gradients with k = 1..n (n,)."""
        ends_s = np.sort(times_s.reshape(len(times_s), -1), axis=1).mean(axis=0)
        return np.asarray(ends_s * self.workers / np.arange(1, self.workers + 1))

    def of_each_rack_k(self, times_s: FloatArray) -> FloatArray:
        """Return the time for n gradients if iterations end once r racks have k workers each (racks, size)."""
        ends_s = np.sort(np.sort(times_s, axis=2), axis=1).mean(axis=0)
        return np.asarray(ends_s * self.workers / np.multiply.outer(*map(_up_to, (self.racks, self.size))))

    def row(self, seeds: range) -> Row:
        drawn_s = [self.drawn_s(seed) for seed in seeds]
        fixed = np.log([self.of_each_k(times_s) for times_s in drawn_s])
        in_racks = np.log([self.of_each_rack_k(times_s) for times_s in drawn_s])
        best = fixed[:, fixed.mean(axis=0).argmin()]
        mean = in_racks.mean(axis=0)
        r, k = np.unravel_index(mean.argmin(), mean.shape)
        return {
            "slow": self.world,
            "workers": f"{self.racks} x {self.size}",
            "best k": int(fixed.mean(axis=0).argmin()) + 1,
            "adaptive": _ratio([self.chosen_s(seed, self.racks) for seed in seeds], best),
            "racks unknown": _ratio([self.chosen_s(seed, 1) for seed in seeds], best),
            "k per rack": f"{_ratio(np.exp(in_racks[:, r, k]), best)}: {k + 1} in {r + 1} racks",
            "k = n": _ratio(np.exp(fixed[:, -1]), best),
        }


def _up_to(most: int) -> FloatArray:
    return np.arange(1.0, most + 1)


def _ratio(times_s: FloatArray | list[float], best: FloatArray) -> str:
    """Return the mean ratio to the best fixed k, whose log times are `best`, with its interval."""
    logs = np.log(times_s) - best
    half = 1.96 * np.std(logs, ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.inf
    return f"{np.exp(logs.mean()):.2f} ({np.exp(logs.mean() - half):.2f} to {np.exp(logs.mean() + half):.2f})"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=whole(), default=5, help="of each world (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    options = parser.parse_args()
    rows = []
    for (racks, size), world in product(SIZES, WORLDS):
        say(f"{racks} racks of {size} workers, slow: {world}")
        setting = RackWorld(world=world, racks=racks, size=size)
        rows.append(setting.row(range(options.seed, options.seed + options.seeds)))
    show({"racks that are slow as a whole": rows}, as_json=options.json)


if __name__ == "__main__":
    main()
