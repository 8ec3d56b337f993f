"""The workloads in examples/ train in virtual time and through the switch."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kofn.cli.main import main
from tests.run.real_run import OWN_NETWORK
from tests.sim.lab import COSTS

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "workloads"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder without the examples."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_numpy_workload_ends_at_its_own_target(elsewhere: Path) -> None:
    COSTS.save(elsewhere / "costs.json")
    words = ["simulate", str(FOLDER / "linear.toml"), "--trial", "progress", "--costs", "costs.json", "--out", "out"]
    result = CliRunner().invoke(main, [*words, "--set", "run.target=20", "--set", "model.compute_ms=2", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["metric"] == {"name": "mean squared error", "target": 20.0, "better": "lower", "percent": False}
    (trial,) = found["trials"]
    assert trial["time_to_target_s"] > 0 and trial["best_accuracy"] <= 20
    assert trial["identity_error"] is None and trial["conservation_error"] is None
    assert "mean squared error" in (elsewhere / "out" / "report.html").read_text()
    lines = (elsewhere / "out/progress/worker-0.jsonl").read_text().splitlines()
    values = [json.loads(line).get("accuracy") for line in lines]
    assert values[0] > values[-2], "the loss must fall"


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch")
def test_pytorch_workload_trains_through_the_switch(elsewhere: Path) -> None:
    kofn = [str(Path(sys.executable).parent / "kofn"), "run", str(FOLDER / "torch_digits.toml"), "--out", "out"]
    words = ["--trial", "progress", "--set", "run.target=0.8", "--json", "--quiet"]
    environment = {**os.environ, "KOFN_STATE_DIR": str(elsewhere / "state")}
    done = subprocess.run(
        [*OWN_NETWORK, *kofn, *words], cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    trial: dict[str, Any] = json.loads(done.stdout)["trials"][0]
    assert trial["iterations_to_target"] and min(map(int, trial["k_iterations"])) < 4, (
        "the controller must choose a k below 4"
    )
    assert trial["identity_error"] is None and trial["conservation_error"] is None
    assert trial["conservation_unchecked"] is None
