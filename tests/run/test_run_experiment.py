"""`kofn experiment k`: a matrix that is run, interrupted and gone on with; its report; one for real."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import fake_run
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from run import matrix
from run.conduct import conclude
from run.errors import ConfigError, InterruptedRun, RunError
from run.experiment import command
from run.experiment_k import tell
from run.folder import RunFolder
from run.matrix import Scenario, cells, run_cells
from run.runner import Plan, make_plan, prepare
from tests.run.real_run import OWN_NETWORK

TINY = """
[run]
passes = ["fixed:2", "fixed:4", "round"]
[job]
workers = 4
[[straggler]]
workers = [3]
mean_ms = 15
"""

REAL = """
[run]
passes = ["fixed:1", "round"]
target_accuracy = 0.85
[job]
workers = 2
[model]
compute_ms = 4
[[straggler]]
workers = [1]
mean_ms = 15
"""

KOFN = "import sys, run.matrix as m; m.FOLDER = m.Path(sys.argv.pop(1)); from controller.cli import main; main()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two scenarios of four workers, instead of the real ones."""
    scenarios = tmp_path / "experiments"
    scenarios.mkdir()
    (scenarios / "tiny.toml").write_text(TINY)
    (scenarios / "shifty.toml").write_text(TINY.replace("[run]", "[run]\nshift_every = 50"))
    monkeypatch.setattr(matrix, "FOLDER", scenarios)
    return tmp_path / "out"


class Faked:
    """Carries a plan out as if workers had trained; `instead` may do something else first."""

    def __init__(self, instead: Callable[[Plan], None] = lambda plan: None) -> None:
        self.seen: list[tuple[str, int, bool]] = []
        self.instead = instead

    def __call__(self, plan: Plan, console: Console) -> RunFolder:
        run = prepare(plan, "{}")
        self.seen.append((plan.folder.parent.name, plan.shared.run.seed, plan.check))
        self.instead(plan)
        k = {"fixed:2": 2, "fixed:4": 4, "round": 3}
        passes = [fake_run.simulate(k=lambda i, k=k[name]: k) for name in plan.shared.run.passes]
        for fake in passes:
            for status in fake.statuses:
                status["overhead_s"], status["expected"][0]["predicted_s"] = 0.001, 0.015
        fake_run.write_job(run.jobs[0], passes)
        return run


def run(folder: Path, carry_out: Faked, *names: str, seeds: int = 2) -> list[matrix.Result]:
    scenarios = [Scenario.load(name) for name in names or ("shifty", "tiny")]
    return list(run_cells(cells(scenarios, seeds, folder), carry_out, Console(quiet=True)))


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, ["k", *map(str, arguments)])


@pytest.mark.parametrize("name", matrix.names())
@pytest.mark.parametrize("target", ["embedded", "bmv2"])
def test_every_scenario_is_a_run(name: str, target: str, tmp_path: Path) -> None:
    scenario = Scenario.load(name).overridden(target=target, objectives=())
    (cell,) = cells([scenario], 1, tmp_path)
    plan = cell.plan()
    assert plan.shared == cell.config
    assert (plan.shared.network.target, plan.shared.job.workers) == (target, 8)
    assert make_plan(cell.source).shared == cell.config, "the file repeats it"


def test_what_is_finished_is_not_run_again(folder: Path) -> None:
    first, again = Faked(), Faked()
    before = run(folder, first)
    assert first.seen == [("shifty", 1, True), ("tiny", 1, False), ("shifty", 2, False), ("tiny", 2, False)]
    after = run(folder, again, seeds=3)
    assert again.seen == [("shifty", 3, True), ("tiny", 3, False)]
    assert [result.passes for result in after[:4]] == [result.passes for result in before]
    assert all(len(result.passes) == 3 for result in after)


def test_an_interrupted_run_is_done_again(folder: Path) -> None:
    def interrupt(plan: Plan) -> None:
        if plan.shared.run.seed == 2:
            raise InterruptedRun("stopped by SIGINT")

    with pytest.raises(InterruptedRun):
        run(folder, Faked(interrupt), "tiny")
    assert (folder / "tiny" / "seed-2" / "run.json").exists()
    again = Faked()
    assert all(result.passes for result in run(folder, again, "tiny"))
    assert again.seen == [("tiny", 2, True)]


def test_a_run_that_fails_does_not_stop_the_others(folder: Path) -> None:
    def fail(plan: Plan) -> None:
        if plan.shared.run.seed == 1:
            raise RunError("worker-3 ended with exit code 1")

    first, second = run(folder, Faked(fail), "tiny")
    assert (first.error, first.passes) == ("FAILED: worker-3 ended with exit code 1", ())
    assert len(second.passes) == 3
    assert conclude("experiment k", folder, [first, second], tell, Console(quiet=True), as_json=False) == 1
    document = json.loads((folder / "experiment.json").read_text())
    assert document["failures"] == ["tiny, seed 1: FAILED: worker-3 ended with exit code 1"]


def test_results_of_another_configuration_are_not_taken(folder: Path) -> None:
    run(folder, Faked(), "tiny", seeds=1)
    scenario = Scenario.load("tiny").overridden(target=None, objectives=("round",))
    with pytest.raises(ConfigError, match="results of another configuration: choose another --out"):
        list(run_cells(cells([scenario], 1, folder), Faked(), Console(quiet=True)))


def test_a_folder_that_is_no_runs_is_left_alone(folder: Path) -> None:
    mine = folder / "tiny" / "seed-1"
    mine.mkdir(parents=True)
    (mine / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is no run's folder"):
        run(folder, Faked(), "tiny")
    assert (mine / "thesis.tex").exists()


def test_report_only_says_what_is_there(folder: Path) -> None:
    run(folder, Faked())
    result = invoke("--out", folder, "--seeds", "2", "--report-only", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"]
    rows = {row["objective"]: row for row in document["scenarios"][1]["rows"]}
    assert rows["round"]["trainings"] == rows["round"]["reached"] == 2
    assert rows["round"]["predicted_s"]["median"] == pytest.approx(0.016)
    assert [claim["claim"].split(":")[0] for claim in document["claims"]] == ["shifty", "tiny", "tiny"]
    text = (folder / "report.html").read_text()
    assert text.count("<svg") == 4, "times and k of each scenario"
    for part in text.split("<svg")[1:]:
        ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")
    assert all(claim["numbers"] in text for claim in document["claims"])


def test_report_only_names_what_is_missing(folder: Path) -> None:
    run(folder, Faked(), "tiny", seeds=1)
    result = invoke("--out", folder, "--seeds", "2", "--report-only", "--scenario", "tiny")
    assert result.exit_code == 1
    assert "tiny, seed 2: not run yet" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenario", "nonsense"], "no scenario is called 'nonsense': shifty, tiny are"),
        (["--objective", "fixed:5"], "scenario shifty: run.passes is 'fixed:5'"),
        (["--objective", "best"], "with 1 <= K <= workers"),
        (["--report-only"], "--report-only needs --out with the folder of an experiment, not none"),
        (["--report-only", "--out", "nowhere"], "not nowhere"),
        (["--seeds", "0"], "0 is not in the range x>=1"),
    ],
)
def test_bad_input_is_named(folder: Path, arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_a_scenario_says_of_itself_what_may_be_claimed(folder: Path) -> None:
    assert Scenario.load("tiny").stationary
    assert Scenario.load("shifty").shifting
    assert not Scenario.load("shifty").stationary
    (matrix.FOLDER / "skewed.toml").write_text(
        TINY + '[[shard]]\nworker = 3\nclasses = [8]\n[policy]\nlate_gradient = "drop"\n'
    )
    assert Scenario.load("skewed").may_miss
    (matrix.FOLDER / "included.toml").write_text(TINY + "[policy]\ninclude_after = 10\n")
    assert not Scenario.load("included").stationary
    assert not Scenario.load("included").shifting
    assert not Scenario.load("tiny").may_miss


@pytest.mark.root
@pytest.mark.slow
def test_one_for_real_and_again(tmp_path: Path) -> None:
    scenarios, out = tmp_path / "experiments", tmp_path / "out"
    scenarios.mkdir()
    (scenarios / "one-slow.toml").write_text(REAL)
    inside = [*OWN_NETWORK, sys.executable, "-c", KOFN]
    texts = []
    for _ in range(2):
        result = subprocess.run(
            [*inside, str(scenarios), "experiment", "k", "--seeds", "1", "--out", str(out), "--json"],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "KOFN_STATE_DIR": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        texts.append(result)
    first, again = texts
    assert "[1/1] one-slow, seed 1: 2 trainings" in first.stderr
    assert "[1/1] one-slow, seed 1: finished before" in again.stderr
    assert first.stdout == again.stdout
    (scenario,) = json.loads(first.stdout)["scenarios"]
    assert [(row["objective"], row["reached"]) for row in scenario["rows"]] == [("fixed:1", 1), ("round", 1)]
    assert all(row["predicted_s"]["median"] > 0.004 for row in scenario["rows"])
    assert (out / "one-slow" / "seed-1.toml").read_text() == (
        out / "one-slow" / "seed-1" / "effective.toml"
    ).read_text()
    assert (out / "report.html").exists()


def test_in_virtual_time(folder: Path) -> None:
    """The same matrix without a network: trained, found and claimed upon."""
    scenario = folder.parent / "experiments" / "tiny.toml"
    scenario.write_text(REAL)
    arguments = ["k", "--simulate", "--scenario", "tiny", "--seeds", "1", "--out", str(folder), "--json"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["scenarios"]
    assert {row["objective"]: row["reached"] for row in found["rows"]} == {"fixed:1": 1, "round": 1}
    assert all(row["predicted_s"] is not None for row in found["rows"])
    assert json.loads((folder / "tiny" / "seed-1" / "run.json").read_text())["driver"] == "simulated"
