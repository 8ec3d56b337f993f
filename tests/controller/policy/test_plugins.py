"""Objectives of other packages are found by name and loaded, and their faults are contained."""

import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cluster import Cluster, cluster
from bench.synthetic import times_alone
from kofn_common.config.errors import ConfigError
from kofn_common.config.interventions import EventSection
from kofn_common.config.objectives import OBJECTIVES
from kofn_common.config.policy import PolicySection
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_controller.policy.objective import Objective, objective
from kofn_controller.policy.objectives.throughput import throughput_costs

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "objectives"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that registers a one-module package as an installer would, with its metadata next to it on the
    path.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def install(text: str, entry: str = "mine = my_objectives:mine", module: str = "my_objectives") -> None:
        (tmp_path / f"{module}.py").write_text(text)
        metadata = tmp_path / f"{module}-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(f"[{OBJECTIVES.group}]\n{entry}\n")

    return install


def one_slow(**policy: Any) -> Cluster:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, **policy)
    for iteration in range(1, 20):
        running.iterate(iteration)
    return running


def test_built_in_names_are_objectives() -> None:
    assert {"throughput", "progress", "all"} <= {*OBJECTIVES.built_in}
    assert all(objective(name, 4).name == name for name in OBJECTIVES.built_in)


def test_names_are_checked_without_numbers() -> None:
    code = "import sys, kofn_common.config.schema; print('numpy' in sys.modules or 'kofn_controller' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_example_chooses_the_most_workers_within_its_deadline(installed: Any) -> None:
    installed(
        (EXAMPLE / "kofn_deadline.py").read_text(), entry="deadline = kofn_deadline:deadline", module="kofn_deadline"
    )
    assert 'deadline = "kofn_deadline:deadline"' in (EXAMPLE / "pyproject.toml").read_text()
    config = Config(run=RunSection(trials=("deadline",)), policy=PolicySection(objective="deadline"))
    config = Config(run=config.run, policy=config.policy, event=(EventSection(at_iteration=3, objective="deadline"),))
    config.check()
    running = one_slow(objective="deadline")
    choice = running.control_loop.choice
    assert choice is not None
    predicted_s = choice.forecast.predicted_s
    assert running.control_loop.k == int((predicted_s <= 0.025).sum()) == 3
    assert running.control_loop.set_objective("all", running.now_s) is not None
    change = running.control_loop.set_objective("deadline", running.now_s)
    assert change is not None and change.k == 3


def test_error_for_an_unknown_name_lists_the_names_and_how_to_add_one(installed: Any) -> None:
    installed("def mine(forecast): return forecast.ks")
    with pytest.raises(ConfigError) as raised:
        Config(policy=PolicySection(objective="best")).check()
    assert str(raised.value) == (
        f"policy.objective must be {', '.join(OBJECTIVES.built_in)}, mine, module:Name, or fixed:K, merge:K, "
        "async:K, batch-sync:K, stash:K, abort:K, drop:K with 1 <= K <= workers = 4, got 'best'"
    )


def test_objective_of_the_working_folder_needs_no_package(installed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """It may be an Objective with more than its costs."""
    lines = ("from kofn_controller.policy.objective import Objective", "", "def costs(forecast): return -forecast.ks")
    (tmp_path / "my_objectives.py").write_text("\n".join((*lines, "most = Objective(name='', costs=costs, unit='s')")))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    running = one_slow(objective="my_objectives:most")
    assert (running.control_loop.k, running.control_loop.goal.unit) == (4, "s")
    assert isinstance(objective("my_objectives:costs", 4), Objective)


@pytest.mark.parametrize("name", ["a:", ":b", "a b:c", "1:2", "fixed:two", "drop:all"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"objective must be .*module:Name, or fixed:K"):
        objective(name, 4)


def test_built_in_is_not_replaced(installed: Any) -> None:
    installed(
        "def mine(forecast): raise AssertionError", entry="throughput = my_objectives:mine\n7 = my_objectives:mine"
    )
    assert objective("throughput", 4).costs is throughput_costs
    with pytest.raises(ConfigError, match="'7'"):
        objective("7", 4)


def test_one_name_of_two_packages_is_an_error(installed: Any) -> None:
    installed("def mine(forecast): return forecast.ks")
    installed("def mine(forecast): return forecast.ks", entry="mine = other_objectives:mine", module="other_objectives")
    with pytest.raises(ConfigError, match="my_objectives:mine and other_objectives:mine: remove one of these packages"):
        objective("mine", 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import does_not_exist", "cannot be loaded: ModuleNotFoundError: No module named 'does_not_exist'"),
        ("other = 3", "cannot be loaded: AttributeError"),
        ("mine = 3", "must be an Objective, or a callable that takes a Forecast"),
    ],
)
def test_objective_that_does_not_load_is_named_in_the_error(installed: Any, text: str, words: str) -> None:
    installed(text)
    running = one_slow()
    with pytest.raises(ConfigError) as raised:
        running.control_loop.set_objective("mine", running.now_s)
    assert str(raised.value).startswith("objective 'mine' (my_objectives:mine) ") and words in str(raised.value)
    assert running.control_loop.goal.name == "throughput"


FAULTS = [
    ("raise ValueError('no\\nidea')", "failed: ValueError: no idea"),
    ("return None", "must give 4 costs, one for each k, got the shape ()"),
    ("import time; raise OSError(time.monotonic_ns())", "failed: OSError: "),
    ("return forecast.ks[:-1]", "must give 4 costs, one for each k, got the shape (3,)"),
    ("return 1.0", "must give 4 costs, one for each k, got the shape ()"),
    ("return ['a', 'b', 'c', 'd']", "failed: ValueError"),
    ("return [1, float('nan'), 1, 1]", f"must give finite costs, got {math.nan} for k = 2"),
    ("return forecast.ks * float('-inf')", f"must give finite costs, got {-math.inf} for k = 1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_fault_is_logged_once_and_leaves_k_within_the_live_workers(
    installed: Any, caplog: pytest.LogCaptureFixture, text: str, words: str
) -> None:
    installed(f"def mine(forecast):\n    {text}")
    running = one_slow()
    control_loop = running.control_loop
    assert control_loop.k == 3
    with caplog.at_level(logging.ERROR):
        control_loop.set_objective("mine", running.now_s)
        for iteration in range(20, 40):
            running.iterate(iteration)
    fault = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(fault) == 1 and words in fault[0]
    assert (control_loop.k, words in control_loop.chooser.fault) == (3, True)
    for rank in (0, 1):
        control_loop.worker_left(rank, "lost", running.now_s)
    assert control_loop.k == 2
    control_loop.worker_joined(0, "is back", running.now_s, 40)
    assert 1 <= control_loop.k <= 3
    control_loop.set_objective("throughput", running.now_s)
    assert control_loop.chooser.fault == ""


def test_plug_in_cannot_change_the_forecast(installed: Any) -> None:
    installed("def mine(forecast):\n    forecast.expected_s[:] = 0\n    return forecast.ks")
    forecast = times_alone(np.arange(1.0, 5))
    np.testing.assert_array_equal(objective("mine", 4).costs(forecast), [1, 2, 3, 4])
    np.testing.assert_array_equal(forecast.expected_s, np.arange(1.0, 5))
