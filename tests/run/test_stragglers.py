"""Blocking is recorded and replayed, and workers may get less of a processor."""

import csv
import json
import os
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner

from kofn.cli.main import main
from kofn.run.stragglers import blocked, check_record
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.results.worker_metrics import Iteration, Totals, WorkerMetrics
from kofn_host.workload import read_trace
from tests.run.real_run import RealRun
from tests.sim.lab import COSTS, written


def line(iteration: int, blocked_s: float | None) -> Iteration:
    return Iteration(iteration=iteration, time=0.0, params="", k=1, count=1, blocked_s=blocked_s)


def test_missed_iteration_has_the_blocking_that_made_it_missed() -> None:
    lines = (line(1, 0.001), line(2, 0.05), line(3, None), line(4, None), line(5, 0.0), line(6, None))
    worker = WorkerMetrics(rank=3, iterations=lines, totals=Totals())
    found = {iteration: time_s for (iteration, rank), time_s in blocked(worker, 9).items() if rank == 3}
    assert found == {1: 0.001, 2: 0.05, 3: 0.05, 4: 0.05, 5: 0.0}
    assert blocked(WorkerMetrics(rank=0, iterations=(line(1, None),), totals=Totals()), 9) == {}


def test_record_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("")
    for path, jobs, words in (
        (tmp_path / "there.csv", 1, "there.csv is there: choose another name"),
        (tmp_path / "gone" / "new.csv", 1, "gone is no folder"),
        (tmp_path / "new.csv", 2, "needs one configuration, got 2"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_record(path, jobs=jobs)
    with pytest.raises(ConfigError, match=r"needs one seed, got run.seeds = 3"):
        check_record(tmp_path / "new.csv", seeds=3)
    result = CliRunner().invoke(main, ["simulate", "--record-stragglers", str(tmp_path / "there.csv")])
    assert result.exit_code == 2 and "is there" in result.stderr


def times(folder: Path) -> list[float]:
    return [trial["median_iteration_s"] for trial in json.loads((folder / "summary.json").read_text())["trials"]]


@pytest.mark.slow
def test_simulation_and_its_replay_take_equally_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    COSTS.save(tmp_path / "costs.json")
    own = '\n[[straggler]]\nworkers = [1]\nlaw = "bursty"\nmean_ms = 9\nburst_share = 0.4\ncompute_ms = 9\n'
    words = ["--costs", "costs.json", "--trial", "fixed:2", "--trial", "all"]
    config = written(tmp_path, own, iterations=40, rule="merge")
    recorded = CliRunner().invoke(
        main, ["simulate", str(config), *words, "--record-stragglers", "t.csv", "--out", "one"]
    )
    assert recorded.exit_code == 1, recorded.output  # accuracy 1 is not reached
    assert "blocking of trial all: t.csv" in " ".join(recorded.output.split())
    assert {rank for _, rank in read_trace("t.csv")} == {0, 1, 2} and len(read_trace("t.csv")) == 3 * 40
    text = config.read_text().partition("[[straggler]]")[0]
    (tmp_path / "again.toml").write_text(text.replace("[model]", '[model]\ntrace = "t.csv"'))
    again = CliRunner().invoke(main, ["simulate", "again.toml", *words, "--out", "two"])
    assert again.exit_code == 1, again.output
    assert times(tmp_path / "two") == pytest.approx(times(tmp_path / "one"), rel=1e-3)


def test_processor_shares_are_not_simulated(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["simulate", str(written(tmp_path, "[[cpu]]\nworkers = [1]\nshare = 0.5"))])
    assert result.exit_code == 2 and "cpu.share is not simulated" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workers = []\nshare = 0.5", "cpu.workers must have one or more numbers, got none"),
        ("workers = [4]\nshare = 0.5", "cpu.workers must be 0 to 3 .job.workers - 1., got 4"),
        ("workers = [1]\nshare = 0.01", r"cpu\[0\].share must be 0.05 to 1, got 0.01"),
        ("workers = [1]", r"cpu\[0\].share must be a number \(0.05 to 1\), got none"),
    ],
)
def test_invalid_processor_shares_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Config.parse(f"[[cpu]]\n{text}")


CPU = """
[run]
name = "slowed"
target = {target}
max_iterations = 30
trial_deadline_s = {deadline_s}
trials = ["all"]
[job]
workers = 2
[model]
hidden = [512, 512]
batch = 128
compute_ms = 1
[[cpu]]
workers = [1]
share = 0.1
at_iteration = 15
"""


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
def test_worker_with_less_of_a_processor_is_recorded_as_blocked(tmp_path: Path) -> None:
    record = tmp_path / "blocking.csv"
    with RealRun(tmp_path, "--quiet", "--record-stragglers", str(record), target=1.0, config=CPU) as run:
        assert run.wait() == 1  # accuracy 1 is not reached
        assert "processor of worker-1 (10%) set at iteration 15" in " ".join(run.text().split())
        assert run.leftovers() == []
    with record.open() as file:
        rows = [(int(row["iteration"]), int(row["rank"]), float(row["blocking_ms"])) for row in csv.DictReader(file)]
    slowed = median(ms for iteration, rank, ms in rows if rank == 1 and iteration > 18)
    assert slowed > median(ms for iteration, rank, ms in rows if rank == 1 and iteration < 15) + 5
    lines = map(json.loads, (run.out / "all" / "worker-1.jsonl").read_text().splitlines())
    measured = {line["iteration"]: line["blocked_s"] for line in lines if line.get("computed")}
    assert {iteration: ms for iteration, rank, ms in rows if rank == 1} == pytest.approx(
        {iteration: 1e3 * time_s for iteration, time_s in measured.items()}, abs=1e-3
    )
