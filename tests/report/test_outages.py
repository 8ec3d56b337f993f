"""A resumed trial's times do not include the outage."""

from pathlib import Path

import msgspec
import pytest

from kofn.report.interventions import Intervention
from kofn.report.marks import read_marks
from kofn.report.outages import Outages
from kofn.report.page import trial_series
from kofn.report.summarise import summarise
from kofn.report.summary import Summary
from kofn_common.config.schema import Config
from kofn_common.results.event_log import LoggedEvent
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import read_trial
from tests.run.fake_run import simulate, write

OUTAGE_S = 600.0


def resumed(path: Path, *after: int) -> tuple[RunFolder, Summary]:
    """Return a trial that was resumed after each of these iterations, OUTAGE_S after its interruption."""
    fake, folder = simulate(), RunFolder.create(path, ["all"])
    for line in (line for worker in fake.lines for line in worker):
        pause_s = OUTAGE_S * sum(line["iteration"] > iteration for iteration in set(after))
        line.update(started=line["started"] + pause_s, time=line["time"] + pause_s)
    write(folder, [fake])
    events = [LoggedEvent(time=0.0, iteration=iteration, action="resume", name="nothing lost") for iteration in after]
    folder.jobs[0].trials[0].events.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return folder, summarise(folder.jobs[0], Config())


@pytest.mark.parametrize("after", [(20,), (20, 20, 60)])
def test_times_do_not_include_outages(tmp_path: Path, after: tuple[int, ...]) -> None:
    (whole,), (found,) = resumed(tmp_path / "whole")[1].trials, resumed(tmp_path / "resumed", *after)[1].trials
    for name in ("time_to_target_s", "mean_iteration_s", "median_iteration_s", "duration_s", "longest_stall_s"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), abs=0.01), name
    assert found.outage_s == pytest.approx(OUTAGE_S * len(set(after)), abs=0.01)
    assert whole.outage_s == 0.0


def test_note_names_the_outage(tmp_path: Path) -> None:
    _, summary = resumed(tmp_path, 20)
    assert "trial all: its times do not include 600.0 s from interruption to resumption" in summary.notes


def test_figures_have_the_times_of_the_table(tmp_path: Path) -> None:
    folder, summary = resumed(tmp_path, 20)
    (trial,), (entry,) = summary.trials, folder.jobs[0].trials
    series = trial_series(entry, read_trial(entry, 4), Config(), trial)
    assert series.accuracy.x[-1] == pytest.approx(trial.duration_s, abs=0.01)
    assert series.iteration_ms.y.max() < 1000


def test_marks_after_an_outage_are_moved() -> None:
    outages = Outages(((10.0, 30.0), (40.0, 45.0)))
    assert [outages.cut_time(time) for time in (5.0, 10.0, 20.0, 30.0, 39.0, 50.0)] == [
        5.0,
        10.0,
        10.0,
        10.0,
        19.0,
        25.0,
    ]


def test_change_is_drawn_at_the_end_of_its_iteration(tmp_path: Path) -> None:
    folder, _ = resumed(tmp_path, 20)
    (entry,) = folder.jobs[0].trials
    read = read_trial(entry, 4)
    outages = Outages.of(read, [LoggedEvent(time=0.0, iteration=20, action="resume", name="")])
    line = read[0].iterations[29]
    change = Intervention(time=line.time, iteration=30, what="k", by_hand=False)
    (mark,) = read_marks(Config(), [change], outages.cut(read), outages)
    assert mark.time_s == pytest.approx(line.time - OUTAGE_S - 1000.0, abs=0.01)
