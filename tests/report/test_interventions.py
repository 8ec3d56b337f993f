"""Changes during a trial are part of its name, and a trial changed by hand is not compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from kofn.report.page import write_report
from kofn.report.summarise import summarise_run
from kofn.report.summary import RunSummary
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from tests.run.fake_run import two_trials

KILLED = {"time": 1000.5, "iteration": 9, "action": "kill", "name": "worker-2"}
STARTED = {"time": 1000.7, "iteration": 12, "action": "start", "name": "worker-2"}
MISSED = {"time": 1003.0, "iteration": 150, "action": "kill", "name": "worker-1", "missed": "it has ended"}
OBJECTIVE = {"time": 1001.0, "job": 1, "iteration": 20, "objective": "fixed:2"}
BY_HAND = OBJECTIVE | {"planned": False}
PLANNED = OBJECTIVE | {"planned": True}
SAMPLE = {"time": 1001.0, "job": 1, "iteration": 20, "k": 2, "lambda_s": [None], "live": 4}
OTHER_JOB = BY_HAND | {"job": 2}


def summarised(folder: RunFolder) -> RunSummary:
    return summarise_run(folder, [Config()], "")


def note(path: Path, *lines: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
def test_baseline_changed_by_hand_is_no_baseline(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    note(folder.jobs[0].trials[1].decisions, SAMPLE, BY_HAND, OTHER_JOB)
    found = summarised(folder)
    (summary,) = found.jobs
    assert summary.headings() == ["throughput", "all, objective fixed:2 by hand (20)"]
    assert ["baseline / this", "-", "-"] in summary.rows()
    assert ["changed in mid-run", "-", "objective fixed:2 by hand at iteration 20"] in summary.rows()
    assert summary.notes == [
        "trial all was changed by hand (objective fixed:2 by hand at iteration 20): it is not compared"
    ]
    document = found.to_dict()
    assert (document["ok"], document["speedup"], document["failures"]) == (False, None, [])
    assert [entry["name"] for entry in document["trials"]] == summary.headings()
    assert document["trials"][1]["interventions"][0]["by_hand"] is True
    page = write_report(folder, [Config()], found).read_text()
    assert "a factor of" not in page
    assert summary.notes[0] in page
    assert "all (baseline)" not in page


def test_only_the_trial_changed_by_hand_is_not_compared(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    note(folder.jobs[0].trials[0].decisions, BY_HAND)
    (summary,) = summarised(folder).jobs
    assert summary.speedup is None
    assert ["baseline / this", "-", "1.00"] in summary.rows()
    assert summary.headings()[1] == "all (baseline)"


def test_configured_changes_are_named_and_compared(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    first, baseline = folder.jobs[0].trials
    note(first.events, KILLED, STARTED, MISSED, PLANNED | {"action": "objective", "name": "fixed:2"})
    note(first.decisions, PLANNED)
    note(baseline.events, KILLED)
    found = summarised(folder)
    (summary,) = found.jobs
    assert summary.headings() == ["throughput, 3 changes", "all, worker-2 killed (9) (baseline)"]
    assert [str(one) for one in summary.trials[0].interventions] == [
        "worker-2 killed at iteration 9",
        "worker-2 started at iteration 12",
        "objective fixed:2 at iteration 20",
    ]
    assert summary.speedup is not None
    assert found.to_dict()["ok"] is True


@pytest.mark.slow
def test_objective_that_fails_makes_the_run_fail(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    fault = "objective 'mine:costs' failed: ZeroDivisionError: no data"
    note(folder.jobs[0].trials[0].decisions, OBJECTIVE | {"fault": fault}, OBJECTIVE | {"fault": "again"})
    found = summarised(folder)
    assert found.failures == [f"trial throughput: {fault} at iteration 20; k stays as it is"]
    assert found.to_dict()["ok"] is False
    assert found.jobs[0].trials[0].interventions == (), "without an operator's change there is no intervention"
    assert "ZeroDivisionError" in write_report(folder, [Config()], found).read_text()
