"""Protocols with their own data plane: every call and dtype, loss and duplication, and trainings, on each switch.

KOFN_PROTOCOL=module:Name adds a protocol to those of kofn's documents and examples.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn_controller.p4runtime.p4c import COMPILER
from tests.run.real_run import RealRun
from tests.system.collectives import scenarios
from tests.system.collectives.protocols import EXAMPLES, FIFO, PROTOCOLS, protocol_crew, write_smallest
from tests.targets import TARGETS

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on the PATH"),
]

OWN = {scenarios.huge}
"""Scenarios that take a protocol in Python too long."""


@pytest.fixture(scope="module", autouse=True)
def smallest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Write the how-to's files where plug-ins are found."""
    folder = tmp_path_factory.mktemp("protocol")
    write_smallest(folder)
    sys.path[:0] = [str(folder), str(EXAMPLES)]
    yield folder
    del sys.path[:2]


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=PROTOCOLS)
def team(request: pytest.FixtureRequest, target: str) -> Iterator[Any]:
    with protocol_crew(request.param, target) as found:
        yield found


@pytest.mark.parametrize(
    "scenario",
    [*(one for one in scenarios.EVERY if one not in OWN), scenarios.non_finite_values_are_refused_in_a_sum],
    ids=lambda scenario: scenario.__name__,
)
def test_scenario(team: Any, scenario: Any) -> None:
    team.run(scenario)


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_every_sum_of_every_block_is_numpys_in_spite_of_loss(target: str, kind: str) -> None:
    every = np.random.default_rng(1).integers(-(2**31), 2**31, (3, 20_000), dtype=np.int64).astype(np.int32)
    with protocol_crew(kind, target, FIFO, rto_ms=5.0) as team:
        for turn in range(2):
            rows = np.roll(every, turn, axis=1)
            expected = rows.sum(axis=0, dtype=np.int32)
            outcomes = team.run(lambda one, rows=rows: one.all_reduce(rows[one.rank]).wait(30))
            for outcome in outcomes:
                assert np.array_equal(outcome.value, expected)
            assert sum(outcome.counts["retransmissions"] for outcome in outcomes) > 0


@pytest.mark.slow
def test_how_to_trains_as_written(smallest: Path, tmp_path: Path, target: str) -> None:
    for path in smallest.glob("stop_and_wait.*"):
        shutil.copy(path, tmp_path)
    config = (smallest / "mine.toml").read_text()
    with RealRun(tmp_path, "--json", "--target", target, "--set", "run.target=0.9", config=config) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    (trial,) = json.loads(run.stdout.read_text())["trials"]
    assert trial["identity_error"] is None
    assert trial["retransmissions"] > 0
    counters = trial["switch_counters"]
    assert counters["added"] >= 3 * counters["completed"] > 0 and counters["repeated"] > 0
    assert trial["packets_sent"] == pytest.approx(sum(counters.values()), rel=0.1)


def changed(smallest: Path, folder: Path, old: str, new: str) -> str:
    """Write the how-to's files with a change of the Python part; return the configuration."""
    for path in smallest.glob("stop_and_wait.*"):
        shutil.copy(path, folder)
    script = folder / "stop_and_wait.py"
    assert old in script.read_text()
    script.write_text(script.read_text().replace(old, new))
    return (smallest / "mine.toml").read_text()


def test_wrong_entry_of_a_data_plane_ends_the_run_at_once(smallest: Path, tmp_path: Path) -> None:
    config = changed(smallest, tmp_path, '"ingress.jobs"', '"ingress.job"')
    with RealRun(tmp_path, config=config) as run:
        assert run.wait() == 1
        assert "controller: an entry of table 'ingress.job' does not fit the P4 program: no P4Table" in run.text()
        assert "Traceback" not in run.text()


def test_exception_in_a_speaker_is_in_the_workers_log(smallest: Path, tmp_path: Path) -> None:
    config = changed(smallest, tmp_path, "if number != self.first + at:", "if number != self.frist + at:")
    with RealRun(tmp_path, config=config) as run:
        assert run.wait() == 1
        assert "has no attribute 'frist' (traceback in its log), in all_reduce" in run.text()
        logs = [path.read_text() for path in run.out.rglob("worker-*.log")]
    assert any("Traceback" in log and 'stop_and_wait.py", line' in log for log in logs)


def test_refused_program_is_an_error_of_p4c_before_anything_starts(smallest: Path, tmp_path: Path) -> None:
    for path in smallest.glob("stop_and_wait.*"):
        (tmp_path / path.name).write_text(path.read_text().replace("bit<64> own", "bit<65> own"))
    config = (smallest / "mine.toml").read_text()
    with RealRun(tmp_path, config=config) as run:
        assert run.wait() == 2
        assert "stop_and_wait.p4: p4c refuses it:" in run.text() and "bit<65>" in run.text()
