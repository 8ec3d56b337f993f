"""Few workers of a simulation keep results."""

from pathlib import Path

import pytest

from kofn.sim.worker import KEEPERS
from kofn_common.config.schema import Config
from tests.sim.lab import FREE, Trained, written


@pytest.mark.slow
def test_few_workers_keep_results_for_all(tmp_path: Path) -> None:
    """All would need 64 MB each, as workers of a run keep."""
    config = Config.load(written(tmp_path, objective="fixed:10", iterations=20), ["job.workers=12"])
    simulation = Trained(config, tmp_path / "out", FREE).run().simulation
    kept = [len({result.id.iteration for result in one.protocol.results(1, 100)}) for one in simulation.workers]
    assert sum(count == 20 for count in kept) == 6 <= KEEPERS
    assert sum(count <= 3 for count in kept) == 6, kept
