"""The policies in examples/, in virtual time."""

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from kofn.cli.main import main
from tests.sim.lab import COSTS

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "policies"


def test_bandit_tries_every_k_and_seldom_waits_for_the_slow_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    COSTS.save(tmp_path / "costs.json")
    short = [
        part for setting in ("run.target=1", "run.max_iterations=150", "model.batch=4") for part in ("--set", setting)
    ]
    words = [str(FOLDER / "bandit.toml"), "--trial", "bandit:Bandit", "--costs", "costs.json", "--out", "out", *short]
    result = CliRunner().invoke(main, ["simulate", *words])
    assert result.exit_code == 1, result.output  # accuracy 1 is not reached
    statuses = map(json.loads, (tmp_path / "out/bandit-Bandit/status.jsonl").read_text().splitlines())
    assert all(not status.get("objective_fault") for status in statuses)
    lines = map(json.loads, (tmp_path / "out/bandit-Bandit/worker-0.jsonl").read_text().splitlines())
    used = Counter(line["k"] for line in lines if "k" in line)
    assert {*used} == {1, 2, 3, 4} and used[4] < 40 < used.total() - used[4]
