"""The worlds of `kofn experiment k`: causes of slow workers, for any number of workers.

A gradient takes 12 ms, blocking comes in events of 4 ms, and the last ranks are slow.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from kofn.experiments.matrix import Scenario, of_scenario
from kofn_common.config.schema import Config

Kind = Literal["stationary", "changing", "skewed"]
"""Whether blocking is constant, and whether the workers' data is alike."""

Document = dict[str, Any]
"""Tables of a configuration, as in TOML."""


class World(NamedTuple):
    """A world; `tables` returns the configuration's tables for a number of workers."""

    kind: Kind
    story: str
    tables: Callable[[int], Document]


RATES = (0.02, 0.1, 0.35)
"""Learning rates: a small rate, a usual rate, and the rate at which k = n needs the fewest iterations."""

WORKERS = (4, 8, 16)

LONG = 20.0
"""The product of the learning rate and the limit of a training's iterations."""

SHORT = 400
"""The least value of the limit of a training's iterations."""

PERIOD = 50
"""Iterations after which a world changes."""

EVENT_MS = 4.0
"""The duration of a blocking event."""


def scenario(name: str, workers: int, rate: float, settings: Sequence[str] = ()) -> Scenario:
    """Return a world at a learning rate, with the command line's settings. ConfigError names the conflict."""
    title = f"{name}-{workers}w-{rate:g}"
    document: Document = {
        "run": {"accuracy_over": 10, "max_iterations": max(SHORT, round(LONG / rate))},
        "job": {"workers": workers, "words": 32},  # three packets a gradient: many workers share few cores
        "model": {"compute_ms": 12.0, "learning_rate": rate},
    }
    for table, entries in WORLDS[name].tables(workers).items():
        document[table] = document.get(table, {}) | entries if isinstance(entries, dict) else entries
    document["run"]["trials"] = trials(workers)
    document["straggler"] = [{"event_ms": EVENT_MS} | entry for entry in document.get("straggler", ())]
    with of_scenario(title):
        return Scenario(name=title, config=Config.of(document, settings))


def world_of(scenario: Scenario) -> str:
    """Return the name of a scenario's world."""
    return scenario.name.rsplit("-", 2)[0]


def trials(workers: int) -> list[str]:
    """Return the choosing objectives, the rules and ks to compare with, and waiting for all."""
    quarters = [max(workers * part // 4, 1) for part in (1, 2, 3)]
    ks = sorted({*quarters, workers - 1})
    return [
        "progress",
        "throughput",
        *(f"async:{k}" for k in ks),
        *(f"batch-sync:{k}" for k in ks[1:]),
        *(f"merge:{k}" for k in ks[1:3]),
        "all",
    ]


def _blocked(*means_ms: float, **more: Any) -> Document:
    """Return workers with these mean blocking times, by rank; `more` are further keys of every worker."""
    entries = [{"workers": [rank], "mean_ms": mean_ms, **more} for rank, mean_ms in enumerate(means_ms)]
    return {"straggler": entries}


def _last(workers: int, *slow_ms: float, others_ms: float = 4.0) -> Document:
    """Return workers of which the last ones are slow."""
    return _blocked(*[others_ms] * (workers - len(slow_ms)), *slow_ms)


def _graded(workers: int) -> Document:
    """Return workers whose mean blocking grows geometrically from 2 to 60 ms."""
    return _blocked(*(round(2 * 30 ** (rank / (workers - 1)), 1) for rank in range(workers)))


def _hardware(workers: int, times: float) -> Document:
    """Return workers of which half compute more slowly."""
    half, compute_ms = workers // 2, 12 * times
    slow = {"workers": list(range(half, workers)), "mean_ms": 2.0, "compute_ms": compute_ms}
    return {"straggler": [{"workers": list(range(half)), "mean_ms": 2.0}, slow]}


def _shocked(workers: int, base_ms: float, groups: Sequence[Sequence[int]], **more: Any) -> Document:
    """Return workers that are all blocked a little; each group of them also has separate shocks."""
    return _blocked(*[base_ms] * workers) | {"shock": [{"workers": list(group), **more} for group in groups]}


def _racks(workers: int) -> Document:
    """Return workers whose racks have separate shocks: racks of four, or of two if there are four workers."""
    size = 2 if workers == 4 else 4
    racks = [range(first, first + size) for first in range(0, workers, size)]
    return _shocked(workers, 4.0, racks, blocking_ms=50.0, for_ms=300.0, share=0.3)


def _alternating(workers: int) -> Document:
    """Return workers of which the last one is always slow; the others in its half are slow by turns."""
    half = list(range(workers // 2, workers - 1))
    turns = [
        {"workers": half, "mean_ms": mean_ms, "from_iteration": first}
        for first, mean_ms in zip(range(1 + PERIOD, 20 * PERIOD, PERIOD), [60.0, 2.0] * 10, strict=False)
    ]
    return {"straggler": [*_last(workers, 60.0, others_ms=2.0)["straggler"], *turns]}


def _returning(workers: int) -> Document:
    """Return two absences: a gradient of worker 0 takes 1.5 s, later a gradient of worker 1 takes 2.5 s."""
    entries: list[Document] = _last(workers)["straggler"]
    for rank, first, away_ms in ((0, 20, 1500.0), (1, 60, 2500.0)):
        entries.append({"workers": [rank], "mean_ms": 4.0, "compute_ms": away_ms, "from_iteration": first})
        entries.append({"workers": [rank], "mean_ms": 4.0, "from_iteration": first + 5})
    return {"straggler": entries}


def _owned(workers: int) -> Document:
    """Return workers of which the last two are slow, and each of these two alone has a class. Of four workers only the
    last one is slow, and it alone has both classes."""
    if workers == 4:
        return _last(workers, 60.0) | {"shard": [{"worker": 3, "classes": [8, 9]}]}
    shards = [{"worker": workers - 1, "classes": [8]}, {"worker": workers - 2, "classes": [9]}]
    return _last(workers, 60.0, 60.0) | {"shard": shards}


WORLDS = {
    "equal": World("stationary", "all 8 ms", lambda n: _blocked(*[8.0] * n)),
    "one-slow": World("stationary", "one 80 ms, others 2 ms", lambda n: _last(n, 80.0, others_ms=2.0)),
    "two-slow": World("stationary", "40 and 60 ms, others 4 ms", lambda n: _last(n, 40.0, 60.0)),
    "graded": World("stationary", "2 to 60 ms, each by the same factor more", _graded),
    "hardware-1.5": World("stationary", "half of the workers compute 1.5 times longer", lambda n: _hardware(n, 1.5)),
    "hardware-2": World("stationary", "half of the workers compute 2 times longer", lambda n: _hardware(n, 2.0)),
    "exponential": World("stationary", "all 20 ms, exponential", lambda n: _blocked(*[20.0] * n, law="exponential")),
    "pareto": World("stationary", "all 15 ms, Pareto with shape 2", lambda n: _blocked(*[15.0] * n, law="pareto")),
    "bursts": World(
        "stationary",
        "each 60 ms for half a second, a quarter of the time",
        lambda n: _shocked(n, 2.0, [[rank] for rank in range(n)], blocking_ms=60.0, for_ms=500.0, share=0.25),
    ),
    "shocks": World(
        "stationary",
        "all at once 60 ms for 100 ms, a quarter of the time",
        lambda n: _shocked(n, 4.0, [range(n)], blocking_ms=60.0, for_ms=100.0, share=0.25),
    ),
    "racks": World("stationary", "rack by rack 50 ms for 300 ms, 30 % of the time", _racks),
    "shifting": World(
        "changing",
        f"one 70 ms, another one every {PERIOD} iterations",
        lambda n: _last(n, 70.0, others_ms=2.0) | {"run": {"shift_every": PERIOD}},
    ),
    "alternating": World("changing", f"one and half of them 60 ms, by turns of {PERIOD} iterations", _alternating),
    "returning": World("changing", "two are away for 1.5 s and 2.5 s", _returning),
    "owned": World("skewed", "two 60 ms, which alone hold two classes", _owned),
    "dirichlet": World(
        "skewed",
        "two 40 ms; classes divided by Dirichlet(0.3)",
        lambda n: _last(n, 40.0, 40.0) | {"model": {"dirichlet": 0.3}},
    ),
}
"""All worlds, by name."""
