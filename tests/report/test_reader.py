"""A run's folder as data frames: finished, stopped, active, or no run at all."""

import json
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from kofn.experiments.reader import read
from kofn.report.frames import TABLES
from kofn.report.over_seeds import SeedsSummary
from kofn.report.reader import Run, Seeds
from kofn.report.summarise import summarise
from kofn.run.conclusion import summarised
from kofn_common.config.errors import KofnError
from kofn_common.config.schema import Config
from kofn_common.results.errors import ResultsError
from kofn_common.results.event_log import LoggedEvent
from kofn_common.results.folder import RunFolder
from kofn_common.results.link_bytes import write_links
from kofn_common.results.provenance import Provenance
from kofn_common.results.worker_metrics import Iteration
from tests.run.fake_run import append, simulate, two_trials, write
from tests.test_extras import without_extras


def finished(path: Path) -> RunFolder:
    folder = two_trials(path)
    summarised(folder, [Config()])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_frame_has_the_columns_of_its_schema(tmp_path: Path, name: str) -> None:
    frame = getattr(read(finished(tmp_path).path), name)
    columns = list(TABLES[name].columns())
    assert list(frame) == [one.name for one in columns]
    assert [str(dtype) for dtype in frame.dtypes] == [one.dtype for one in columns]
    assert len({one.name for one in columns}) == len(columns), "columns must have different names"


def test_metrics_are_the_workers_lines(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    metrics = read(tmp_path).metrics
    assert len(metrics) == 2 * 4 * 200
    row = metrics[(metrics.trial == "all") & (metrics.worker == 3) & (metrics.iteration == 7)].iloc[0]
    line = msgspec.json.decode(folder.jobs[0].trials[1].metrics(3).read_bytes().splitlines()[6], type=Iteration)
    assert (row.loss, row.time, row.k, row.late) == (line.loss, line.time, line.k, line.late)
    assert pd.isna(row.width) and pd.isna(row.account_entered), "unreported values must be NaN"


def test_each_logged_number_of_a_script_is_a_row(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    append(folder, 1, {"iteration": 7, "time": 3.5, "logged": {"top1": 0.5, "loss": None}})
    logged = read(tmp_path).logged
    assert logged[["worker", "iteration", "time", "name"]].values.tolist() == [[1, 7, 3.5, "top1"], [1, 7, 3.5, "loss"]]
    assert logged.value.iloc[0] == 0.5 and pd.isna(logged.value.iloc[1])
    assert len(read(tmp_path).metrics) == 2 * 4 * 200, "lines that are no iterations must not count"


def test_arrivals_give_the_order_and_the_members_of_the_sum(tmp_path: Path) -> None:
    two_trials(tmp_path)
    arrivals = read(tmp_path).arrivals
    first = arrivals[(arrivals.trial == "throughput") & (arrivals.iteration == 50)].sort_values("first_block_s")
    assert first.place.is_monotonic_increasing
    assert first.place.iloc[0] == 1
    assert first.in_sum.tolist() == [True, True, True, False], "with k = 3 the first three workers are in the sum"
    assert (first.late == ~first.in_sum).all()


def test_k_is_the_one_in_force(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    decision = {
        "time": 1.0,
        "job": 1,
        "iteration": 60,
        "k": 2,
        "late_gradient": "async",
        "age_weight": 0.5,
        "reason": "better",
    }
    folder.jobs[0].trials[0].decisions.write_text(json.dumps(decision) + "\n")
    k = read(tmp_path).k
    assert k[k.trial == "throughput"][["iteration", "late_gradient", "k"]].values.tolist() == [
        [8, "merge", 3],
        [60, "async", 2],
    ]


def test_links_and_events_are_read(tmp_path: Path) -> None:
    entry = two_trials(tmp_path).jobs[0].trials[1]
    write_links(entry.links, ["h1"], {"h1": (10, 20)}, {"h1": (110, 320)})
    event = LoggedEvent(time=5.0, iteration=9, action="kill", name="worker-2")
    entry.events.write_bytes(msgspec.json.encode(event) + b"\n")
    run = read(tmp_path)
    assert run.links.values.tolist() == [["all", 1, "h1", 100, 300]]
    assert run.events.values.tolist() == [["all", 1, 5.0, 9, "kill", "worker-2", ""]]


def test_summary_equals_the_runs(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    run = read(tmp_path)
    trials = summarise(folder.jobs[0], Config()).trials
    assert run.finished and run.ok and run.failures == []
    assert run.summary.time_to_target_s.tolist() == [entry.time_to_target_s for entry in trials]
    assert run.summary.trial.tolist() == ["throughput", "all"]
    assert run.report is None


def test_failed_run_is_not_ok(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["throughput", "all"])
    other = simulate()
    for line in other.lines[2]:
        line["params"] = "other"
    write(folder, [other, simulate()])
    summarised(folder, [Config()])
    run = read(tmp_path)
    assert run.finished and not run.ok
    assert "replicas differ" in run.failures[0] and "replicas differ" in repr(run)


def test_active_run_is_read_up_to_its_last_complete_line(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["throughput", "all"])
    write(folder, [simulate(), simulate(iterations=20)])
    folder.update_record(finished=1)
    going_on = folder.jobs[0].trials[1]
    for rank in range(4):
        lines = going_on.metrics(rank).read_text().splitlines(keepends=True)[:-1]
        going_on.metrics(rank).write_text("".join(lines) + '{"iteration": 21, "ti')
    going_on.sums(0).unlink()
    run = read(tmp_path)
    assert not run.finished and not run.ok
    assert run.metrics.groupby("trial").iteration.max().to_dict() == {"throughput": 200, "all": 20}
    assert run.summary[["trial", "iterations"]].values.tolist() == [["throughput", 200], ["all", 20]]
    assert f"{tmp_path}: 1 of 2 trials ended; it is still running, or was killed" in repr(run)
    assert "1 of 2 trials ended" in run._repr_html_()


def test_stopped_run_gives_its_reason(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    folder.update_record(finished=1, ended="stopped by SIGINT (Ctrl-C)")
    summarised(folder, [Config()], "stopped by SIGINT (Ctrl-C)")
    run = read(tmp_path)
    assert not run.finished
    assert "1 of 2 trials ended; stopped by SIGINT (Ctrl-C)" in repr(run)
    assert "all (did not end)" in repr(run)


def test_run_without_an_iteration_has_empty_frames(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    folder.write_record([Config()], driver="auto")
    folder.write_effective([Config()])
    run = Run(tmp_path)
    assert [len(getattr(run, name)) for name in TABLES] == [0] * len(TABLES)
    assert "0 of 1 trials ended" in repr(run)
    assert "<svg" not in run._repr_html_()


def test_notebook_shows_table_and_figure(tmp_path: Path) -> None:
    page = Run(finished(tmp_path).path)._repr_html_()
    assert "all (baseline)" in page and "gradients conserved" in page
    assert page.count("<svg") == 1


@pytest.mark.slow
def test_notebook_shows_the_table_without_plots(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    run = without_extras(f"import kofn; print(kofn.read({str(folder.path)!r})._repr_html_())")
    assert "all (baseline)" in run.stdout, run.stderr
    assert "<svg" not in run.stdout


def test_text_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "<b>"
    assert "&lt;b&gt;" in Run(finished(path).path)._repr_html_()


def test_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        KofnError, match=rf"^{tmp_path} must be the folder of a run or an experiment: it has no run.json"
    ):
        read(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(KofnError, match="missing required field"):
        read(tmp_path)


def test_run_of_several_seeds_has_the_rows_of_all_seeds(tmp_path: Path) -> None:
    two_trials(tmp_path / "run").update_record(seeds=(1, 2))
    found = read(tmp_path / "run")
    assert isinstance(found, Seeds)
    with pytest.raises(KofnError, match="must have a run with a finished trial, got none"):
        _ = found.metrics
    for seed in (1, 2):
        finished(tmp_path / "run" / f"seed-{seed}")
    again = read(tmp_path / "run")
    one = Run(tmp_path / "run" / "seed-1").metrics
    assert list(again.metrics.columns) == ["seed", *one.columns]
    assert [len(rows) for _, rows in again.metrics.groupby("seed")] == [len(one), len(one)]
    assert list(again.summary["seed"]) == [1, 1, 2, 2]


def test_ended_trial_without_its_files_is_no_empty_trial(tmp_path: Path) -> None:
    entry = two_trials(tmp_path).jobs[0].trials[0]
    for rank in range(4):
        entry.metrics(rank).unlink()
    with pytest.raises(ResultsError, match=r"throughput/worker-0.jsonl: worker 0 wrote no iteration"):
        _ = read(tmp_path).metrics


def test_damage_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = finished(tmp_path)
    append(folder, 1, {"iteration": "many"})
    with pytest.raises(ResultsError, match=r"worker-1.jsonl: a line must have the fields"):
        _ = read(tmp_path).metrics
    entry = folder.jobs[0].trials[0]
    with entry.status.open("a") as file:
        file.write('{"iteration": NaN}\n')
    _ = read(tmp_path).k
    assert "status.jsonl: skipping a damaged line" in caplog.text
    entry.events.write_text('{"time": 1.0}\n')
    with pytest.raises(ResultsError, match=r"events.jsonl: .*missing required field"):
        _ = read(tmp_path).events
    (tmp_path / "summary.json").write_text('{"trials": 1}')
    with pytest.raises(ResultsError, match=r"summary.json: not the summary of a run"):
        _ = read(tmp_path).summary


def test_run_that_does_not_know_its_commit_says_so(tmp_path: Path) -> None:
    """A copy that pip has made has no commit."""
    folder = two_trials(tmp_path)
    folder.update_record(provenance=Provenance(kofn="1.2"))
    summary = summarised(folder, [Config()])
    note = "kofn 1.2, commit unknown: kofn was not run from a git checkout, or git did not answer"
    assert summary.notes == [note]
    assert dict(folder.record().provenance.rows())["kofn"] == "1.2, commit unknown"
    assert note in repr(read(tmp_path))
    seeds = SeedsSummary(
        seeds=(1,), summaries={1: summary}, jobs=(), early_end="", provenance=folder.record().provenance
    )
    assert seeds.notes == [note]
    folder.update_record(provenance=Provenance(kofn="1.2", commit="3f0c"))
    assert summarised(folder, [Config()]).notes == []
    assert dict(folder.record().provenance.rows())["kofn"] == "1.2, commit 3f0c"
