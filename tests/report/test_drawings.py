"""The report's figures: files with the drawn numbers, captions, marks, explanations and provenance."""

import csv
import json
import platform
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from kofn.report.explained import EXPLAINED, LOGGED, explained
from kofn.report.figures import DRAWN_WORKERS, Series, TrialSeries, WorkerSeries, longest_blocked
from kofn.report.interventions import Intervention
from kofn.report.iteration_costs import LINKS, LinkMeans, mean_parts_s, worker_iteration_s
from kofn.report.marks import read_marks
from kofn.report.page import write_report
from kofn.report.planned_changes import describe_fault
from kofn.report.series import read_series
from kofn.report.summarise import summarise_run
from kofn_common.config.faults import FaultSection
from kofn_common.config.schema import Config
from kofn_common.config.stragglers import StragglerSection
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import TIME_PARTS, WorkerMetrics, read_trial
from tests.run.fake_run import FakeTrial, compress, simulate, two_trials, write


def report(folder: RunFolder, config: Config | None = None) -> str:
    configs = [config or Config()]
    return write_report(folder, configs, summarise_run(folder, configs, "")).read_text()


def timed(fake: FakeTrial) -> FakeTrial:
    for line in (line for worker in fake.lines for line in worker):
        line.update(dict.fromkeys(TIME_PARTS, line["iteration_s"] / len(TIME_PARTS)))
    return fake


def made_in(path: Path) -> RunFolder:
    made = RunFolder.create(path, ["throughput", "all"])
    write(made, [timed(simulate(k=lambda i: 3)), timed(simulate())])
    for (entry,) in made.trials:
        entry.links.write_text('{"h1": [200, 400], "h2": [400, 400], "h3": [200, 400], "h4": [400, 400]}')
    return made


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return made_in(tmp_path)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    """Return a folder with a report, for tests that change neither, and the report's page."""
    made = made_in(tmp_path_factory.mktemp("reported"))
    return made, report(made)


def read(folder: RunFolder, number: int = 0) -> tuple[tuple[WorkerMetrics, ...], TrialSeries]:
    entry = folder.jobs[0].trials[number]
    metrics = read_trial(entry, 4)
    return metrics, read_series(entry, metrics, entry.objective)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_figure_has_its_files_a_caption_and_links(reported: tuple[RunFolder, str]) -> None:
    folder, page = reported
    names = ["accuracy", "iteration-time", "costs", "blocking-1", "blocking-2"]
    assert sorted(path.name for path in (folder.path / "figures").iterdir()) == sorted(
        f"{name}.{kind}" for name in names for kind in ("csv", "pdf", "svg")
    )
    assert page.count("<svg") == page.count("<figcaption>") == len(names)
    for number, name in enumerate(names, 1):
        assert f"Figure {number}. " in page
        for kind in ("svg", "pdf", "csv"):
            assert f'href="figures/{name}.{kind}"' in page
        assert (folder.path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        picture = ET.parse(folder.path / "figures" / f"{name}.svg")
        texts = ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert len(texts) > 5, "labels must be text, not paths"


@pytest.mark.slow
def test_files_hold_the_drawn_numbers(reported: tuple[RunFolder, str]) -> None:
    folder, _ = reported
    _, series = read(folder)
    rows = table(folder.path / "figures" / "accuracy.csv")
    drawn = [(float(row["time_s"]), float(row["accuracy"])) for row in rows if row["trial"] == "throughput"]
    np.testing.assert_array_equal(drawn, np.stack([series.accuracy.x, series.accuracy.y], axis=1))
    blocking = table(folder.path / "figures" / "blocking-1.csv")
    estimated = [float(row["value"]) for row in blocking if (row["quantity"], row["worker"]) == ("estimated_ms", "3")]
    np.testing.assert_array_equal(estimated, series.workers[3].estimated.y)
    assert {row["value"] for row in blocking if row["quantity"] == "k"} == {"3.0"}


@pytest.mark.slow
def test_costs_add_up_and_equal_those_of_a_comparison(reported: tuple[RunFolder, str]) -> None:
    folder, _ = reported
    metrics, _ = read(folder)
    parts = mean_parts_s(metrics)
    assert sum(parts.values()) == pytest.approx(worker_iteration_s(metrics), rel=0.02)
    shown = [row for row in table(folder.path / "figures" / "costs.csv") if row["trial"] == "throughput"]
    rows = {row["part"]: float(row["value"]) for row in shown}
    assert rows["wait [s]"] == parts["wait_s"]
    assert (rows["worker, up [bytes]"], rows["worker, down [bytes]"]) == (300 / 200, 400 / 200)
    assert [*LinkMeans.__dataclass_fields__] == [*LINKS]


@pytest.mark.slow
def test_compression_figures_have_their_numbers(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    write(folder, [compress(simulate())])
    config = Config.parse('[compress]\ncodec = "int8"')
    report(folder, config)
    rows = table(folder.path / "figures" / "compression.csv")
    assert {(row["quantity"], row["value"]) for row in rows if row["panel"].startswith("Bytes")} == {
        ("measured", "0.25"),
        ("planned", "0.5"),
    }


def test_faults_are_described() -> None:
    fault = FaultSection(workers=(1, 2), drop=0.1, delay_ms=3, from_s=2, until_s=5)
    assert describe_fault(fault) == (
        "0.1 lost, 3 ms delay of the packets of workers 1, 2 (both, at the host) from 2 s until 5 s"
    )


def test_changes_are_marked(folder: RunFolder) -> None:
    config = Config(
        straggler=(
            StragglerSection(workers=(3,), mean_ms=60.0),
            StragglerSection(workers=(3,), mean_ms=1.0, from_iteration=100),
            StragglerSection(workers=(1,), mean_ms=1.0, from_iteration=900),
        ),
        fault=(FaultSection(workers=(0, 1), drop=0.1, from_s=1.0, until_s=1e6), FaultSection(drop=0.1)),
    )
    metrics, series = read(folder)
    killed = Intervention(time=1000.5, iteration=9, what="worker-2 killed", by_hand=False)
    marks = read_marks(config, [killed], metrics)
    assert [mark.words for mark in marks] == [
        "worker-2 killed",
        "fault 1 begins: 0.1 lost of the packets of workers 0, 1 (both, at the host)",
        "worker 3 blocked 1 ms on average",
    ]
    assert [mark.iteration for mark in marks] == [
        9,
        int(np.sum(np.cumsum(series.iteration_ms.y) < 1000.0)),
        99,
    ]
    assert marks[0].time_s == pytest.approx(0.5)
    assert marks[2].time_s == pytest.approx(series.accuracy.x[98])


@pytest.mark.slow
def test_marks_are_in_pictures_and_captions(folder: RunFolder) -> None:
    line = {"time": 1000.5, "iteration": 9, "action": "kill", "name": "worker-2"}
    folder.jobs[0].trials[1].events.write_text(json.dumps(line) + "\n")
    page = report(folder)
    assert page.count("Vertical lines: 1: worker-2 killed.") == 3, (
        "accuracy, iteration time and one trial's blocking must mark the event"
    )
    assert "all, worker-2 killed (9) (baseline)" in page


@pytest.mark.slow
def test_page_has_a_dark_side_and_its_provenance(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/kofn", "run", "--out", "a b"])
    folder.write_record([Config()], driver="netns")
    folder.update_record(finished=2)
    page = report(folder)
    assert "prefers-color-scheme: dark" in page
    made = folder.record().provenance
    assert made.python == platform.python_version()
    assert len(made.program_sha256) == 64
    for value in (made.python, made.numpy, made.program_sha256, made.kernel, made.kofn, made.commit):
        assert value
        assert value in page
    document = summarise_run(folder, [Config()], "").to_dict()["provenance"]
    assert (document["commit"], document["command"]) == (made.commit, made.command)
    assert document["command"] == "kofn run --out 'a b'"


@pytest.mark.slow
def test_every_row_is_explained(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    (summary,) = summarise_run(folder, [Config()], "").jobs
    labels = [*(label for label, *_ in summary.rows()), "accuracy, last"]
    assert [label for label, _ in explained(labels)] == labels
    room = Path(__file__).parents[2] / "kofn" / "report"
    source = (room / "summary.py").read_text() + (room / "compressed.py").read_text()
    assert all(f'"{label}"' in source for label in EXPLAINED if label not in ("time to", LOGGED)), (
        "each explained label must exist"
    )
    page = report(folder)
    assert "<dt>share of the sums</dt>" not in page
    assert "<dt>longest stall</dt><dd>The longest time in which" in page


def test_figure_has_the_longest_blocked_of_many_workers() -> None:
    nothing = np.zeros(0)
    workers = [
        WorkerSeries(
            rank=rank,
            injected=Series(x=np.array([1.0]), y=np.array([float(rank % 1000)])),
            estimated=Series(x=nothing, y=nothing),
            low=nothing,
            high=nothing,
        )
        for rank in range(1024)
    ]
    drawn = longest_blocked(workers)
    assert [worker.rank for worker in drawn] == list(range(1000 - DRAWN_WORKERS, 1000))
    assert [worker.rank for worker in longest_blocked(workers[:4])] == [0, 1, 2, 3]
