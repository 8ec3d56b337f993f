"""All workers' blocking at once, against each worker's own source."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kofn_common.config.schema import Config
from kofn_host.workload.straggler_source import StragglerSource, load_stragglers, straggler_class

SEEDS = 3, 7

ENTRIES = {
    "poisson": '[[straggler]]\nworkers = "all"\nmean_ms = 20\n[[straggler]]\nworkers = [1, 4]\nmean_ms = 90\n',
    "constant": '[[straggler]]\nworkers = "0-5:2"\nmean_ms = 20\nlaw = "constant"\ncompute_ms = 70\n',
    "exponential": '[[straggler]]\nworkers = "0-3"\nmean_ms = 20\nlaw = "exponential"\n',
    "pareto": '[[straggler]]\nworkers = "all"\nmean_ms = 20\nlaw = "pareto"\n',
    "bursty": '[[straggler]]\nworkers = "1-4"\nmean_ms = 9\nlaw = "bursty"\nburst_iterations = 3\nfrom_iteration = 4\n',
    "changing": "".join(
        f'[[straggler]]\nworkers = "{ranks}"\nmean_ms = {mean_ms}\nlaw = "{law}"\nfrom_iteration = {first}\n'
        for ranks, mean_ms, law, first in (("all", 5, "poisson", 1), ("0-2", 40, "bursty", 9), ("2", 9, "poisson", 30))
    ),
    "shock of all": '[[shock]]\nworkers = "all"\nblocking_ms = 30\nfor_ms = 90\nshare = 0.3\n',
    "shock of racks": '[[shock]]\nworkers = "all"\nblocking_ms = 30\nfor_ms = 90\nshare = 0.3\ncommon = "rack"\n',
    "shock of each": '[[shock]]\nworkers = "1-4"\nblocking_ms = 30\nfor_ms = 90\nshare = 0.3\ncommon = false\n',
}


class Mine(StragglerSource):
    def mean_s(self, iteration: int) -> float:
        return 0.0

    def blocking_s(self, iteration: int, batch: int = 0, now_s: float = 0.0) -> float:
        return 0.001 * (100 * self.rank + iteration + batch) + now_s


def check(config: Config, iterations: int = 600) -> None:
    """Compare all times of the sources."""
    found = straggler_class(config).together(config, SEEDS)
    configs = [replace(config, run=replace(config.run, seed=seed)) for seed in SEEDS]
    alone = [[load_stragglers(each, rank) for rank in range(config.job.workers)] for each in configs]
    random = np.random.default_rng(1)
    begun_s = np.zeros((len(SEEDS), config.job.workers))
    for iteration in range(1, iterations + 1):
        begun_s += random.random(begun_s.shape)
        for batch in (0, 1) if iteration % 50 == 0 else (0,):
            wanted_s = [
                [source.blocking_s(iteration, batch, now_s) for source, now_s in zip(row, times_s, strict=True)]
                for row, times_s in zip(alone, begun_s.tolist(), strict=True)
            ]
            np.testing.assert_allclose(found.blocking_s(iteration, begun_s, batch), wanted_s, rtol=1e-12)
        compute_s = np.broadcast_to(found.compute_s(iteration), begun_s.shape)
        np.testing.assert_array_equal(compute_s, [[source.compute_s(iteration) for source in row] for row in alone])


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 11])
@pytest.mark.parametrize("entries", ENTRIES)
def test_drawn_blocking_equals_that_of_each_worker(entries: str, shift: int) -> None:
    check(Config.parse(f"[run]\nshift_every = {shift}\n[job]\nworkers = 6\nracks = 2\n{ENTRIES[entries]}"))


def test_racks_have_shocks_of_their_own() -> None:
    config = Config.parse(f"[job]\nworkers = 6\nracks = 2\n{ENTRIES['shock of racks']}")
    found = straggler_class(config).together(config, [1])
    times_s = np.array([found.blocking_s(at, np.full((1, 6), 0.09 * at))[0] for at in range(1, 400)])
    np.testing.assert_array_equal(times_s[:, :3], times_s[:, [0]].repeat(3, axis=1))
    np.testing.assert_array_equal(times_s[:, 3:], times_s[:, [3]].repeat(3, axis=1))
    assert np.abs(np.mean(times_s[:, [0, 3]] > 0, axis=0) - 0.3).max() < 0.1
    assert np.any(times_s[:, 0] != times_s[:, 3])


def test_traced_blocking_equals_that_of_each_worker(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("1,0,5\n1,2,7.5\n3,1,9\n20,2,1\n")
    (tmp_path / "run.toml").write_text("[job]\nworkers = 3\n[model]\ntrace = 'trace.csv'\n")
    check(Config.load(tmp_path / "run.toml"), iterations=25)


def test_any_source_can_be_asked_for_all_workers() -> None:
    check(Config.parse(f"[job]\nworkers = 3\n[model]\nstragglers = '{__name__}:Mine'\n"), iterations=5)
