"""`kofn simulate` on the command line: its output and files, its refusals, its exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from kofn.cli.main import main
from kofn.report.summarise import summarise
from kofn.run.plan import make_plan
from kofn.sim.costs import Costs, measure
from kofn.sim.runner import execute
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from tests.sim.lab import COSTS, checked, written

ROOT = Path(__file__).parents[2]


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """Return a file of CPU times that are the same on every machine."""
    path = tmp_path / "costs.json"
    COSTS.save(path)
    return path


def simulate(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


@pytest.mark.slow
def test_folder_equals_that_of_a_run(tmp_path: Path, costs: Path) -> None:
    path = written(tmp_path, target=0.94, iterations=500)
    out = tmp_path / "out"
    result = simulate(path, "--trial", "throughput", "--trial", "all", "--out", out, "--costs", costs, "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary == json.loads((out / "summary.json").read_text())
    assert (out / "config.toml").read_text() == path.read_text()
    assert Config.load(out / "effective.toml").run.trials == ("throughput", "all")
    assert Costs.load(out / "costs.json") == COSTS
    assert "<svg" in (out / "report.html").read_text()
    folder = RunFolder.at(out, ("throughput", "all"))
    assert folder.record().driver == "simulated"
    for (entry,) in folder.trials:
        checked(entry, 3)
    again = summarise(folder.jobs[0], Config.load(out / "effective.toml"))
    assert [entry.iterations for entry in again.trials] == [entry["iterations"] for entry in _trials(summary)]
    chosen, everyone = again.trials
    assert chosen.time_to_target_s is not None and everyone.time_to_target_s is not None
    assert chosen.time_to_target_s < everyone.time_to_target_s, (
        "choosing k must be faster if one of three workers is blocked ten times as often"
    )
    assert chosen.predicted_iteration_s == pytest.approx(chosen.mean_iteration_s, rel=0.3)
    assert simulate(path, "--out", out, "--costs", costs).exit_code == 2, "a simulation must not overwrite results"


@pytest.mark.slow
def test_one_worker_alone_is_compared(tmp_path: Path, costs: Path) -> None:
    path, out = written(tmp_path, target=0.9, iterations=500), tmp_path / "out"
    result = simulate(path, "--trial", "source", "--out", out, "--costs", costs, "--set", "run.alone=true", "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    (trial,), found = summary["trials"], summary["alone"]
    assert found["time_to_target_s"] == found["duration_s"] != trial["time_to_target_s"]
    times = [line["time"] for line in map(json.loads, (out / "alone" / "worker-0.jsonl").read_text().splitlines())]
    assert len(times) == found["iterations"]
    assert times[-1] == pytest.approx(found["time_to_target_s"], abs=1e-9)
    assert f"One worker alone: 90.0% accuracy after {times[-1]:.1f} s." in result.stderr


APART = """
import sys
from pathlib import Path
from rich.console import Console
from kofn_common.forked import processors
from kofn.run.plan import make_plan
from kofn.sim.costs import Costs
from kofn.sim.runner import execute

config, costs, out, *objectives = sys.argv[1:]
plan = make_plan(Path(config), out=Path(out), objectives=tuple(objectives))
execute(plan, Console(quiet=True), lambda: Costs.load(Path(costs)), apart=True)
print(processors())
"""
"""Runs in a separate process: pytest's has threads and cannot fork."""


@pytest.mark.slow
def test_parallel_trials_equal_sequential_ones(tmp_path: Path, costs: Path) -> None:
    cores, objectives = len(os.sched_getaffinity(0)), ("throughput", "fixed:1", "all")
    if cores == 1:
        pytest.skip("one processor: trials are simulated in turn")
    path = written(tmp_path, iterations=12)
    apart = [sys.executable, "-c", APART, str(path), str(costs), str(tmp_path / "apart"), *objectives]
    ended = subprocess.run(apart, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == f"{cores}\n", "the simulation must have used all processors"
    plan = make_plan(path, out=tmp_path / "turn", objectives=objectives)
    turn, beside = execute(plan, Console(quiet=True), lambda: COSTS), RunFolder.at(tmp_path / "apart", objectives)
    assert beside.record().finished == 3
    for (one,), (other,) in zip(turn.trials, beside.trials, strict=True):
        for file in (one.decisions, one.status, *(one.metrics(rank) for rank in range(3))):
            assert (other.path / file.name).read_bytes() == file.read_bytes(), file
            assert file.read_bytes()


def _trials(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trials of the only job."""
    trials: list[dict[str, Any]] = summary["jobs"][0]["trials"] if "jobs" in summary else summary["trials"]
    return trials


@pytest.mark.slow
def test_missed_target_gives_exit_code_1(tmp_path: Path, costs: Path) -> None:
    result = simulate(written(tmp_path, iterations=5), "--out", tmp_path / "out", "--costs", costs)
    assert result.exit_code == 1
    assert (tmp_path / "out" / "summary.json").exists()


def test_endless_simulation_is_an_error(tmp_path: Path, costs: Path) -> None:
    path = written(tmp_path, "[[fault]]\ndrop = 1.0\n")
    path.write_text(path.read_text().replace("[run]", "[run]\ntrial_deadline_s = 2"))
    for more in (["--out", tmp_path / "out"], ["--times"]):
        result = simulate(path, "--costs", costs, *more)
        assert result.exit_code == 1
        assert "was not over after 2 s of virtual time (run.trial_deadline_s)" in result.stderr


def test_times_without_training(tmp_path: Path, costs: Path) -> None:
    path = written(tmp_path, iterations=50)
    result = simulate(path, "--times", "--json", "--trial", "fixed:2", "--trial", "all", "--costs", costs)
    assert result.exit_code == 0, result.stderr
    two, everyone = json.loads(result.stdout)
    assert (two["objective"], two["k"], two["iterations"], two["changes"]) == ("fixed:2", 2, 50, 1 * (two["k"] != 2))
    assert 0.005 < two["mean_iteration_s"] < everyone["mean_iteration_s"]
    assert two["virtual_s"] == pytest.approx(50 * two["mean_iteration_s"])
    again = json.loads(simulate(path, "--times", "--json", "--trial", "fixed:2", "--costs", costs).stdout)
    assert again[0] | {"wall_s": 0} == two | {"wall_s": 0}
    table = simulate(path, "--times", "--costs", costs, "--quiet").stdout
    assert table.split()[:3] == ["trial", "n", "iterations"]
    assert not (tmp_path / "runs").exists()


def test_cores_option_is_used(tmp_path: Path, costs: Path) -> None:
    path = written(tmp_path, iterations=50)
    one, own = (
        json.loads(simulate(path, "--times", "--json", "--trial", "all", "--cores", cores, "--costs", costs).stdout)[0]
        for cores in (1, 0)
    )
    assert own["mean_iteration_s"] < one["mean_iteration_s"]
    assert simulate(path, "--times", "--cores", -1).exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file or directory"),
        ("{", "truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"cores": 2}', "missing required field"),
        (json.dumps({**json.loads('{"cores": -1}')}), "Expected `int` >= 0"),
        ('{"cores": 2, "speed": 1}', "unknown field `speed`"),
        ('{"cores": 2, "encode_s": -1e-3}', "encode_s"),
    ],
)
def test_invalid_file_of_costs_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    bad = tmp_path / "bad.json"
    if text is not None:
        bad.write_text(text)
    result = simulate(written(tmp_path), "--times", "--costs", bad)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"kofn simulate: --costs {bad}: ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) <= 3


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[[event]]\nat_iteration = 5\nkill = "worker-1"\n', "event.kill and event.start are not simulated"),
        (
            '[[event]]\nat_iteration = 5\nkill = "switch"\n[[event]]\nat_iteration = 6\nstart = "switch"\n',
            "event.kill and event.start are not simulated",
        ),
        ('[[fault]]\nwhere = "switch"\ndrop = 0.1\n', "fault.where must be 'host' in a simulation, got 'switch'"),
    ],
)
def test_unsupported_configuration_is_refused(tmp_path: Path, costs: Path, more: str, words: str) -> None:
    result = simulate(written(tmp_path, more), "--out", tmp_path / "out", "--costs", costs)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[job]", "[job]\nstart_workers = 2", "job.start_workers is not simulated"),
        ("[job]", '[network]\ntopology = "mine.json"\n[job]', "network.topology is not simulated"),
    ],
)
def test_further_unsupported_settings_are_refused(tmp_path: Path, costs: Path, old: str, new: str, words: str) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    (tmp_path / "mine.json").write_text("{}")
    result = simulate(path, "--out", tmp_path / "out", "--costs", costs)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("codec", ["int32", "onebit"])
def test_costs_of_this_machine_are_complete(tmp_path: Path, codec: str) -> None:
    found = measure(Config.load(written(tmp_path, f'[compress]\ncodec = "{codec}"\n')))
    assert found.cores >= 1
    times_s = (found.encode_s, found.packet_s, found.apply_s, found.report_s, found.decide_s)
    assert all(0 < time_s < 1 for time_s in times_s)
    found.save(tmp_path / "costs.json")
    assert Costs.load(tmp_path / "costs.json") == found


@pytest.mark.slow
def test_diverging_training_ends_and_says_so(tmp_path: Path, costs: Path) -> None:
    path = written(tmp_path, target=0.94, iterations=300)
    out = tmp_path / "out"
    settings = ("--set", "model.learning_rate=1000", "--trial", "all")
    result = simulate(path, *settings, "--out", out, "--costs", costs, "--json")
    assert result.exit_code == 1
    (trial,) = _trials(json.loads(result.stdout))
    assert trial["diverged"] is True
    assert trial["iterations"] < 10
    assert trial["conservation_error"] is None and trial["identity_error"] is None
    assert f"trial all: diverged: ended after iteration {trial['iterations']}" in result.stderr
    assert "diverged" in (out / "report.html").read_text()


@pytest.mark.slow
def test_failing_objective_is_a_failure(tmp_path: Path, costs: Path) -> None:
    path = written(tmp_path, target=0.94, iterations=300)
    result = simulate(
        path, "--trial", "tests.controller.failing:costs", "--out", tmp_path / "out", "--costs", costs, "--json"
    )
    assert result.exit_code == 1
    (failure,) = json.loads(result.stdout)["failures"]
    assert re.search(
        r"failed: ZeroDivisionError: no data \(.*/tests/controller/failing\.py:\d+\) at iteration", failure
    )
