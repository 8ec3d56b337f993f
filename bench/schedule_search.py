"""The cost and the result of document 001's enumeration of schedules where iterations are noisy, in virtual time.

    python -m bench.schedule_search                 40 seeds of 2000 iterations for each noise: two minutes
    python -m bench.schedule_search --seeds 10 --iterations 1200 --json

An iteration takes least with pieces of 40,000 elements and two front layers; its noise is normal.  `search`: iterations
until the first search has settled, their mean and most; `settled`: share of all iterations in which a search had
settled; `stays`: share of those after the first search; `longer`: how much longer than the best schedule the last one
in force takes; `within 3 %`: share of the seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log10

import numpy as np

from bench.tables import Row, make_parser, say, show, whole
from kofn_host.schedule import PassSchedule
from kofn_host.schedule.agreed_search import AgreedSearch
from kofn_host.schedule.search import GROWTH, MICRO, THRESHOLDS, Enumeration, Search

LAYERS, FIRST = 5, PassSchedule("front-first", 2048)

NOISE = (0.03, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2)
"""Standard deviations of an iteration's time."""

Took = Callable[[PassSchedule], float]


def took_s(one: PassSchedule) -> float:
    """Return the seconds of an iteration without noise: a tenth more for a threshold ten times as large or as small."""
    return 0.3 * (1 + 0.1 * abs(log10(one.threshold / 40_000))) * (1 + 0.02 * abs(one.front - 2))


LEAST_S = min(took_s(PassSchedule(FIRST.name, int(FIRST.threshold * GROWTH**at), 2)) for at in range(THRESHOLDS + 1))


def normal(spread: float, seed: int) -> Callable[[], float]:
    """Return what makes factors with a mean of 1, none below 0.3."""
    random = np.random.default_rng(seed)
    return lambda: float(max(0.3, 1 + spread * random.standard_normal()))


def enumeration() -> Search:
    return Enumeration(LAYERS, FIRST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One search: `settled[i]` and `schedules[i]` of iteration i."""

    settled: list[bool]
    schedules: list[PassSchedule]

    @property
    def search(self) -> int:
        """The iterations of the first search, all where it has not settled."""
        return self.settled.index(True) if True in self.settled else len(self.settled)


def course(new: Callable[[], Search], took: Took, noise: Callable[[], float], iterations: int) -> Course:
    """Return what four workers that tell the same times go through."""
    agreed, before_s = AgreedSearch(new), 0.0
    settled, schedules = list[bool](), list[PassSchedule]()
    for _ in range(iterations):
        settled.append(agreed.search.done)
        schedules.append(agreed.schedule)
        agreed.hear([(int(before_s * MICRO), 1, 1)] * 4, 4)
        before_s = took(schedules[-1]) * noise()
    return Course(settled=settled, schedules=schedules)


def row(spread: float, seeds: int, iterations: int) -> Row:
    courses = [course(enumeration, took_s, normal(spread, seed), iterations) for seed in range(seeds)]
    longer = np.array([took_s(one.schedules[-1]) / LEAST_S - 1 for one in courses])
    searches = [one.search for one in courses]
    after = [settled for one in courses for settled in one.settled[one.search :]]
    return {
        "noise": f"{spread:.0%}",
        "search": f"{np.mean(searches):.0f}",
        "most": max(searches),
        "settled": f"{np.mean([one.settled for one in courses]):.0%}",
        "stays": f"{np.mean(after or [False]):.0%}",
        "longer": f"{np.mean(longer):.1%}",
        "longest": f"{longer.max():.1%}",
        "within 3 %": f"{np.mean(longer <= 0.03):.0%}",
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=whole(), default=40)
    parser.add_argument("--iterations", type=whole(), default=2000)
    options = parser.parse_args()
    rows = []
    for spread in NOISE:
        say(f"noise of {spread:.0%}")
        rows.append(row(spread, options.seeds, options.iterations))
    show({"enumeration": rows}, as_json=options.json)


if __name__ == "__main__":
    main()
