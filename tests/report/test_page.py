"""The report is one file with everything in it."""

import re
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kofn.report.figures import TrialSeries, running_mean
from kofn.report.page import COLUMNS, job_drawings, write_report
from kofn.report.series import read_series
from kofn.report.summarise import summarise, summarise_run
from kofn.report.summary import RunSummary
from kofn.report.svg import svg
from kofn_common.config.compress import CompressSection
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_common.results.record import SIMULATED
from kofn_common.results.worker_metrics import read_trial
from tests.run.fake_run import compress, simulate, two_trials, write

pytestmark = pytest.mark.slow


def report(folder: RunFolder) -> Path:
    return write_report(folder, [Config()], RunSummary(jobs=(summarise(folder.jobs[0], Config()),)))


def first_trial(folder: RunFolder) -> TrialSeries:
    entry = folder.jobs[0].trials[0]
    return read_series(entry, read_trial(entry, 4), entry.objective)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    """Return a run of two trials, and its report."""
    folder = two_trials(tmp_path_factory.mktemp("two"))
    return folder, report(folder).read_text()


def test_report_is_self_contained(two: tuple[RunFolder, str]) -> None:
    folder, text = two
    assert text.count("<svg") == 4
    assert "all (baseline)" in text
    assert "a factor of" in text
    assert "name = &#34;fake&#34;" in text
    assert "; one run, with seed 1; switch embedded, network by netns; trials throughput, all" in text
    assert folder.started in text
    assert "rto_ms = 50.0" in text
    assert "<script" not in text
    assert 'src="http' not in text
    assert 'href="http' not in text


def test_figures_are_well_formed(two: tuple[RunFolder, str]) -> None:
    _, text = two
    for part in text.split("<svg")[1:]:
        ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")


def test_report_without_a_single_status_is_complete(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    for entry in folder.jobs[0].trials:
        entry.status.unlink()
    assert report(folder).exists()


def test_events_are_listed_and_a_worker_that_never_came_is_drawn_empty(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    for entry in folder.jobs[0].trials:
        entry.metrics(3).unlink()
        entry.events.write_text(
            '{"time": 1.0, "iteration": 9, "action": "start", "name": "worker-3", "missed": "no worker came so far"}\n'
        )
    text = report(folder).read_text()
    assert "throughput: worker-3 not started: no worker came so far" in text
    assert text.count("<svg") == 4


def test_running_mean_follows_a_step() -> None:
    values = np.array([1.0] * 20 + [5.0] * 20)
    smooth = running_mean(values, 5)
    assert len(smooth) == 40
    assert (smooth[:18] == 1.0).all()
    assert (smooth[22:] == 5.0).all()


def test_prediction_includes_the_overhead_after_the_first_blocks(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    series = first_trial(folder)
    assert series.predicted_ms.x.size == series.expected_ms.x.size > 0
    np.testing.assert_allclose(series.predicted_ms.y, 1.1 * series.expected_ms.y + 3.0)


def test_compression_is_drawn_where_it_is_used(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    write(folder, [compress(simulate())])
    sent, left_over, pending = first_trial(folder).compression
    assert (sent.measured.y == 0.25).all()
    assert (sent.planned.y == 0.5).all()
    np.testing.assert_allclose(left_over.measured.y, 1 / left_over.measured.x)
    assert (pending.measured.y == 2.5).all(), "the value must be the mean of the workers"
    for config, drawn in ((Config(), 3), (Config(compress=CompressSection(codec="int8")), 4)):
        summary = RunSummary(jobs=(summarise(folder.jobs[0], config),))
        assert write_report(folder, [config], summary).read_text().count("<svg") == drawn


SIX = ("source", "progress", "batch-sync:2", "fixed:2", "throughput", "all")


def fixed(k: int, iteration: int) -> int:
    return k


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return a run of six trials, whose fourth one is the fastest and whose first one is slow."""
    folder = RunFolder.create(tmp_path_factory.mktemp("six"), SIX)
    ks = {"source": 4, "fixed:2": 2}
    write(folder, [simulate(k=partial(fixed, ks.get(name, 3)), seed=seed) for seed, name in enumerate(SIX)])
    return folder


@pytest.fixture(scope="module")
def text_of_six(six: RunFolder) -> str:
    """Return the report of this run."""
    return report(six).read_text()


def test_figures_of_six_trials_give_no_warning(six: RunFolder) -> None:
    """Warnings are errors in these tests; a report's figures are drawn in other processes."""
    summary = summarise(six.jobs[0], Config())
    names = [drawing.name for drawing in job_drawings(six.jobs[0], Config(), summary) if svg(drawing.draw())]
    assert {"accuracy", "iteration-time"} <= set(names)


def test_tables_of_six_trials_fit_the_page(text_of_six: str) -> None:
    tables = re.findall(r"<table>\n<tr>(.*?)</tr>", text_of_six)
    shown = [re.findall("<th>(.*?)</th>", headings) for headings in tables]
    assert [name for _, *names in shown for name in names if name] == [*SIX[:-1], "all (baseline)"]
    assert max(map(len, shown)) <= 1 + COLUMNS


def test_first_sentence_compares_the_best_trial(six: RunFolder, text_of_six: str) -> None:
    summary = summarise(six.jobs[0], Config())
    assert summary.best is not None and summary.best.objective == "fixed:2"
    assert "with <b>fixed:2</b> and in" in text_of_six
    assert f"a factor of {summary.against(summary.best):.2f}" in text_of_six


def test_simulated_run_names_no_switch_and_no_hosts(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    folder.update_record(driver=SIMULATED)
    assert "; simulated, without switch and network; trials throughput, all" in report(folder).read_text()


def test_loaded_machine_is_named(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    folder.update_record(load="the machine was loaded")
    summary = summarise_run(folder, [Config()], "")
    assert summary.notes == ["the machine was loaded"]
    assert "<p>the machine was loaded</p>" in write_report(folder, [Config()], summary).read_text()
