"""`kofn runs`: the list, pruning, and the comparison of two runs."""

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kofn.cli.main import main
from kofn.run.conclusion import summarised
from kofn.run.state import hold
from kofn_common.config.model import ModelSection
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from tests.run.fake_run import two_trials

NAMES = [f"run-{number}" for number in range(5)]


def finished(path: Path, started: str) -> RunFolder:
    folder = two_trials(path)
    folder.update_record(started=started)
    summarised(folder, [Config()])
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write five runs, of which the first is the latest and the last ended early; an experiment;
    and a user's folder.
    """
    folder = tmp_path / "runs"
    for number, name in enumerate(NAMES):
        finished(folder / name, f"2026-01-0{number + 1} 00:00:00")
    RunFolder.open(folder / NAMES[-1]).update_record(finished=1, ended="stopped by SIGINT (Ctrl-C)")
    (folder / "latest").symlink_to(NAMES[0])
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("precious")
    (folder / "experiment").mkdir()
    document = {
        "ok": False,
        "failures": ["all, seed 1: FAILED: the switch died", "all, seed 2: FAILED: the switch died"],
        "table": [{"size": 4, "contender": "all"}, {"size": 4, "contender": "some"}, {"size": 8, "contender": "all"}],
        "provenance": {"command": "kofn experiment question.toml --seeds 2 --out runs/experiment"},
    }
    (folder / "experiment" / "experiment.json").write_text(json.dumps(document))
    os.utime(folder / "experiment" / "experiment.json", (0, 0))
    return folder


def kofn_runs(*arguments: object) -> Result:
    return CliRunner().invoke(
        main, ["runs", *map(str, arguments)], env={"KOFN_STATE_DIR": "/nowhere", "COLUMNS": "300"}
    )


def names(done: Result) -> list[str]:
    assert done.exit_code == 0, done.output
    return [Path(run["path"]).name for run in json.loads(done.stdout)]


def test_all_runs_and_experiments_are_listed(runs: Path) -> None:
    done = kofn_runs("--folder", runs, "--json")
    assert names(done) == ["experiment", *NAMES]
    listed = {Path(run["path"]).name: run for run in json.loads(done.stdout)}
    assert listed["experiment"]["result"] == "failed: all, seed 1: FAILED: the switch died (and 1 more)"
    assert listed["experiment"]["trials"] == ["all", "some"]
    assert listed["experiment"]["command"] == "kofn experiment question.toml --seeds 2"
    assert listed["run-1"]["result"] == "ok"
    assert listed["run-1"]["trials"] == ["throughput", "all"]
    assert listed["run-4"]["result"] == "stopped by SIGINT (Ctrl-C)"
    assert listed["run-0"]["latest"] is True
    assert listed["run-1"]["size_bytes"] > 100_000
    text = kofn_runs("--folder", runs).output
    assert re.search(r"^run-0 \(latest\) +[0-9.]+ MB  ok ", text, re.MULTILINE)
    assert "mine" not in text


@pytest.mark.parametrize(
    ("name", "text", "result"),
    [
        ("experiment.json", '{"failures": []}', "ok"),
        ("experiment.json", "{", "experiment.json: Input data was truncated"),
        ("chaos.json", '{"bmv2": [{"scenario": "loss", "passed": true}]}', "ok"),
        ("chaos.json", '{"bmv2": [{"scenario": "loss", "passed": false}]}', "failed: loss"),
    ],
)
def test_result_of_many_runs_is_shown(tmp_path: Path, name: str, text: str, result: str) -> None:
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / name).write_text(text)
    (listed,) = json.loads(kofn_runs("--folder", tmp_path, "--json").stdout)
    assert listed["result"].endswith(result)


def test_only_old_runs_are_pruned(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prune = ("--folder", runs, "--prune", "--keep", 2)
    assert names(kofn_runs(*prune, "--dry-run", "--json")) == ["experiment", "run-1", "run-2"]
    assert (runs / "run-1").exists()
    text = kofn_runs(*prune).output
    assert f"removed: {runs / 'run-1'} (2026-01-02 00:00:00, " in text
    assert "3 of 6 removed" in text
    assert sorted(path.name for path in runs.iterdir()) == ["latest", "mine", "run-0", "run-3", "run-4"]


def test_active_run_is_not_pruned(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path / "state"))
    with hold(runs / "run-1"):
        done = CliRunner().invoke(main, ["runs", "--folder", str(runs), "--prune", "--keep", "0", "--json"])
    assert names(done) == ["experiment", "run-2", "run-3", "run-4"]
    assert (runs / "run-1" / "run.json").exists()


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    done = kofn_runs("--folder", tmp_path / "nothing")
    assert done.exit_code == 2
    assert "is no folder" in done.output


@pytest.mark.slow
def test_two_runs_are_compared(runs: Path) -> None:
    other = RunFolder.open(runs / "run-2")
    changed = Config(model=ModelSection(learning_rate=0.5))
    other.write_effective([changed])
    done = kofn_runs("compare", "run-1", runs / "run-2", "--folder", runs, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["faster"] == {"throughput": 1.0, "all": 1.0}
    assert document["differences"] == {"model.learning_rate": [0.1, 0.5]}
    assert [entry["k_iterations"] for entry in document["runs"][0]["trials"]] == [{"3": 193, "4": 7}, {"4": 200}]
    text = kofn_runs("compare", "run-1", "run-2", "--folder", runs).output
    assert "model.learning_rate: 0.1 and 0.5" in text
    assert "run-1: all  run-2: all" in text


def test_trials_changed_by_hand_have_no_ratio(runs: Path) -> None:
    folder = RunFolder.open(runs / "run-2")
    line = {"time": 1.0, "job": 1, "iteration": 20, "objective": "fixed:2", "planned": False}
    folder.jobs[0].trials[1].decisions.write_text(json.dumps(line) + "\n")
    summarised(folder, [Config()])
    done = kofn_runs("compare", "run-1", "run-2", "--folder", runs, "--json")
    assert json.loads(done.stdout)["faster"] == {"throughput": 1.0, "all": None}
    assert json.loads(kofn_runs("--folder", runs, "--json").stdout)[3]["result"] == "changed by hand"


def test_misspelt_run_is_answered_with_a_suggestion(runs: Path) -> None:
    done = kofn_runs("compare", "run-1", "run-22", "--folder", runs)
    assert done.exit_code == 2
    assert "did you mean run-2" in done.output
    (runs / "run-1" / "summary.json").unlink()
    missing = kofn_runs("compare", "run-1", "run-2", "--folder", runs)
    assert missing.exit_code == 2
    assert f"kofn report {runs / 'run-1'} makes it" in missing.output
