"""A run that ended early has a summary and a report of its results so far, and gives the reason of its end."""

import io
import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from kofn.cli.main import main
from kofn.report.page import write_report
from kofn.report.summarise import summarise_run
from kofn.report.summary import stored_trials
from kofn.run.conclusion import conclude_early, noted_end
from kofn.run.errors import InterruptedRun, RunError
from kofn.run.state import hold
from kofn_common.config.schema import Config
from kofn_common.results.errors import ResultsError
from kofn_common.results.folder import RunFolder
from kofn_common.results.record import KILLED
from tests.run.fake_run import two_trials

STOPPED = "stopped by SIGINT (Ctrl-C)"


def stopped(path: Path, *, why: str = STOPPED) -> RunFolder:
    """Write a run of two trials that was stopped in the second one; its workers were killed."""
    folder = two_trials(path)
    cut = folder.jobs[0].trials[1]
    for rank in range(4):
        text = cut.metrics(rank).read_text().splitlines(keepends=True)
        cut.metrics(rank).write_text("".join(text[: 60 + rank]) + '{"iteration": 9')
        cut.sums(rank).unlink()
    folder.update_record(finished=1, ended=why)
    return folder


@pytest.fixture
def _no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figures, for tests that do not read them."""
    monkeypatch.setattr("kofn.report.page.write_report", lambda folder, configs, summary: folder.path / "report.html")


def report(folder: RunFolder, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["report", str(folder.path), *arguments], env={"KOFN_STATE_DIR": "/nowhere"})


@pytest.mark.slow
def test_stopped_run_shows_its_results(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    done = report(folder, "--json")
    assert done.exit_code == 1, done.output
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "summary.json").read_text())
    assert (document["ok"], document["early_end"], document["speedup"]) == (False, STOPPED, None)
    assert document["failures"] == [f"trial all: did not end: {STOPPED}"]
    finished, cut = document["trials"]
    assert (finished["iterations"], finished["early_end"], cut["iterations"], cut["early_end"]) == (
        200,
        "",
        63,
        STOPPED,
    )
    assert cut["conservation_unchecked"] == "the ledgers, because the trial did not end"
    counts = ("bytes_sent", "bytes_received", "packets_sent", "packets_received", "retransmissions", "peer_fetches")
    assert finished["packets_sent"] > 0 and [cut[count] for count in counts] == [None] * 6
    rows = {line[:26].strip(): line for line in report(folder, "--details").stdout.splitlines()}
    for row in ("sent", "received", "retransmissions", "corrupted packets dropped", "peer fetches"):
        assert rows[row].split()[-1] == "-", rows[row]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4
    assert f"did not end: {STOPPED}" in page
    assert "all (did not end)" in page


@pytest.mark.usefixtures("_no_page")
@pytest.mark.slow
def test_trial_that_did_not_begin_is_named(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    for rank in range(4):
        folder.jobs[0].trials[1].metrics(rank).unlink()
    document = json.loads(report(folder, "--json").stdout)
    assert document["not_run"] == ["all"]
    assert document["failures"] == [f"trial all: not run: {STOPPED}"]
    assert [entry["objective"] for entry in document["trials"]] == ["throughput"]


@pytest.mark.slow
def test_trial_that_begins_during_a_report_is_left_out(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    logs = [folder.jobs[0].trials[1].metrics(rank) for rank in range(4)]
    begun = {path: path.read_text() for path in logs}
    for path in logs:
        path.unlink()
    summary = summarise_run(folder, folder.configs(), STOPPED)
    for path, text in begun.items():
        path.write_text(text)
    page = write_report(folder, folder.configs(), summary).read_text()
    assert "throughput" in page and "all (did not end)" not in page


def test_report_of_the_latest_run_stays_with_it_when_another_one_starts(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "old")
    latest = tmp_path / "latest"
    latest.symlink_to("old")
    opened = RunFolder.open(latest)
    latest.unlink()
    latest.symlink_to("new")
    assert (opened.path, opened.record()) == (folder.path, folder.record())
    assert all(path.read_text() for path in (opened.jobs[0].effective, opened.trials[0][0].metrics(0)))


def test_run_without_any_results_has_a_summary(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    folder.write_record([Config()], driver="netns")
    folder.write_effective([Config()])
    folder.jobs[0].config.write_text("")
    folder.update_record(ended=STOPPED)
    done = report(folder)
    assert done.exit_code == 1
    assert f"trial all: not run: {STOPPED}" in done.output
    assert (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("_no_page")
@pytest.mark.slow
def test_killed_run_is_called_killed(tmp_path: Path) -> None:
    folder = stopped(tmp_path, why="")
    assert json.loads(report(folder, "--json").stdout)["early_end"] == KILLED


@pytest.mark.usefixtures("_no_page")
@pytest.mark.slow
@pytest.mark.parametrize("going", ["", "seed-4"])
def test_active_run_is_called_active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, going: str) -> None:
    folder = stopped(tmp_path / "run", why="")
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path / "state"))
    with hold(folder.path / going):
        done = CliRunner().invoke(main, ["report", str(folder.path), "--json"])
    assert json.loads(done.stdout)["early_end"] == "it is still running"


@pytest.mark.usefixtures("_no_page")
@pytest.mark.slow
def test_finished_run_is_reported_again(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    done = report(folder, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["early_end"] == ""


def test_other_folder_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 2
    missing = "must be the folder of a run or an experiment: it has no run.json and no experiment.toml"
    assert f"kofn report: {tmp_path} {missing}; kofn runs lists those in runs/" in done.output
    for name in ("two", "one"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").touch()
    several = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert f"{missing}; name one of the 2 in it, {tmp_path / 'one'} for example" in several.output


@pytest.mark.usefixtures("_no_page")
@pytest.mark.slow
def test_different_replicas_are_found_in_partial_results(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    path = folder.jobs[0].trials[1].metrics(2)
    path.write_text(path.read_text().replace('"params": "00000005"', '"params": "dead"'))
    assert "first after iteration 5, workers 0 and 2" in report(folder).output


@pytest.mark.slow
@pytest.mark.parametrize("error", [InterruptedRun(STOPPED), RunError("worker-1 ended (log: x):\n  its last words")])
def test_error_is_noted_and_partial_results_are_concluded(tmp_path: Path, error: Exception) -> None:
    folder = stopped(tmp_path, why="")
    with pytest.raises(type(error)), noted_end(folder, conclude_early(Console(quiet=True), as_json=False)):
        raise error
    why = str(error).partition(":\n")[0]
    assert folder.record().ended == why
    assert json.loads((tmp_path / "summary.json").read_text())["early_end"] == why
    assert (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("_no_page")
@pytest.mark.slow
def test_reason_of_the_end_is_printed_once_by_the_error_that_follows(tmp_path: Path) -> None:
    folder = stopped(tmp_path, why="")
    console = Console(record=True, width=200, file=io.StringIO())
    concluding = conclude_early(console, as_json=False, errors=console)
    with pytest.raises(RunError, match="no iteration for 60 s"), noted_end(folder, concluding):
        raise RunError("no iteration for 60 s")
    said = console.export_text()
    assert "kofn: trial all: did not end\n" in said
    assert "no iteration for 60 s" not in said
    assert "kofn: trial all: did not end: no iteration for 60 s" in report(folder).output


def test_second_signal_skips_the_report(tmp_path: Path) -> None:
    folder = stopped(tmp_path, why="")
    begun = []

    def conclude(folder: RunFolder) -> None:
        begun.append(folder)
        signal.raise_signal(signal.SIGTERM)
        begun.append(folder)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InterruptedRun, match="SIGINT"), noted_end(folder, conclude):
        raise InterruptedRun(STOPPED)
    assert begun == [folder]
    assert folder.record().ended == STOPPED
    assert signal.getsignal(signal.SIGTERM) is before


def test_damaged_file_does_not_hide_why_the_run_ended(tmp_path: Path) -> None:
    folder = stopped(tmp_path, why="")
    folder.jobs[0].trials[0].metrics(0).write_text("{}\n")
    console = Console(record=True, width=200, file=io.StringIO())
    with pytest.raises(InterruptedRun, match="SIGINT"), noted_end(folder, conclude_early(console, as_json=False)):
        raise InterruptedRun(STOPPED)
    assert "no summary:" in console.export_text()


@pytest.mark.usefixtures("_no_page")
@pytest.mark.slow
def test_experiment_takes_no_unfinished_cell(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "one" / "seed-1")
    report(folder)
    with pytest.raises(ResultsError, match="the run did not end"):
        stored_trials(folder.path)
