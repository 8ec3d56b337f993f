"""codecs.toml and codecs-link.toml: their cells, columns and claims, and a small experiment in virtual time."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

import kofn
from examples.experiments.codec_columns import around_change, changes
from kofn.cli.main import main
from kofn.experiments.cells import cells_of, clear
from kofn.experiments.claims import verdicts
from kofn.experiments.experiment_file import ExperimentFile
from kofn.experiments.reader import FinishedTrial
from kofn.run.plan import prepare
from kofn_host.training import load_codecs
from tests.experiments.given import EXAMPLES, GivenResults
from tests.experiments.test_chaos import SUMMARY
from tests.run import fake_run

CODECS, LINK = EXAMPLES / "codecs.toml", EXAMPLES / "codecs-link.toml"


def test_every_cell_has_k_of_n_and_equal_blocks(tmp_path: Path) -> None:
    digits, links = (cells_of(ExperimentFile.load(path, seeds=1), tmp_path) for path in (CODECS, LINK))
    assert (len(digits), len(links)) == (11, 4)
    for cell in (*digits, *links):
        config = cell.config
        widest = max(load_codecs(config.compress.codec, workers=config.job.workers))
        assert config.job.words * 2048 // widest == max(512, 2048 // widest), cell.title
        assert config.run.trials == ("all",)
        assert config.compress.error_feedback is ("no-feedback" not in cell.title)
        assert bool(config.link) is (cell in links)
    assert [[entry.workers for entry in cell.config.link] for cell in links[1:3]] == [[(3,)], [(0, 1, 2, 3)]]
    assert [cell.config.compress.ratio_control for cell in links] == ["off", "deliverable"] * 2


def codecs(folder: Path, iterations: Mapping[str, list[int | None]]) -> list[tuple[bool | None, str]]:
    rows = [
        {"contender": name, "seed": seed, "iterations_to_target": count}
        for name, counts in iterations.items()
        for seed, count in enumerate(counts, 1)
    ]
    return [(one.holds, one.numbers) for one in verdicts(GivenResults(CODECS, rows))]


def test_iterations_are_compared_seed_by_seed(tmp_path: Path) -> None:
    baseline: list[int | None] = [100, 200, 300]
    others: dict[str, list[int | None]] = {
        "int16": [110, 220, 330],
        "int8": [112, 224, 336],
        "onebit": [None, 100, 300],
    }
    found = codecs(tmp_path, {"int32": baseline, **others})
    assert [holds for holds, _ in found] == [True, False, None, False]
    assert found[0][1] == "1.10 (1.10 to 1.10) times that of int32"
    assert found[2][1] == "needs runs of int4"
    assert "onebit never in 1 of 3 seeds" in found[3][1]
    assert {holds for holds, _ in codecs(tmp_path, others)} == {None}, "no claim without 32-bit lanes"


def links(*worlds: tuple[str, list[float], list[float], int | None]) -> list[tuple[bool | None, str]]:
    """Return the verdicts; each world has a link, iteration times of both contenders, and the changed iteration."""
    rows = [
        {"link": link, "contender": name, "iterations_to_target": 45, **around_change(times_s, changed_in)}
        for link, plain, adaptive, changed_in in worlds
        for name, times_s in (("uncompressed", plain), ("adaptive", adaptive))
    ]
    return [(one.holds, one.numbers) for one in verdicts(GivenResults(LINK, rows))]


def test_iterations_of_a_slowing_link_are_compared() -> None:
    before = [0.9, 0.02, 0.02]
    assert around_change([*before, 0.06, 0.08, 0.10], 4) == pytest.approx(
        {"before_s": 0.02, "change_s": 0.06, "after_s": 0.09}
    )
    found = links(
        ("one", [*before, 0.06, 0.08, 0.10], [*before, 0.031, 0.03, 0.05], 4),
        ("all", [*before, 0.06, 0.08, 0.10], [*before, 0.03, 0.05, 0.05], 4),
    )
    assert found == [
        (False, "1.94 times"),
        (True, "2.00 times"),
        (True, "2.25 times"),
        (False, "1.80 times"),
        (True, "45"),
        (True, "45"),
    ]


def test_change_that_never_came_proves_nothing() -> None:
    found = links(("one", [0.02, 0.09, 0.09], [0.01, 0.01, 0.01], None))
    assert [holds for holds, _ in found] == [False, False, True]


def test_iteration_of_a_change_is_the_one_in_which_it_came(tmp_path: Path) -> None:
    cell = cells_of(ExperimentFile.load(LINK, seeds=1), tmp_path)[1]
    run = prepare(clear(cell), "{}")
    fake = fake_run.simulate(iterations=220)
    fake_run.write_job(run.jobs[0], [fake_run.compress(fake)])
    moment = {"time": fake.lines[0][30]["started"] + 0.001, "iteration": 30, "action": "link", "name": "worker-3"}
    cell.trial.events.write_text(json.dumps(moment) + "\n")
    found = changes(FinishedTrial(cell=cell, folder=cell.trial, summary=SUMMARY))
    assert found["change_s"] == pytest.approx(fake.lines[0][30]["time"] - fake.lines[0][29]["time"])


@pytest.mark.slow
def test_small_experiment_runs_in_virtual_time(tmp_path: Path) -> None:
    text = LINK.read_text().replace("at_iteration = 20", "at_iteration = 8").replace("[1536]", "[256]")
    (tmp_path / "small.toml").write_text(text)
    shutil.copy(EXAMPLES / "codec_columns.py", tmp_path)
    arguments = ["--mode", "simulate", "--seeds", "1", "--only", "link=all", "--out", str(tmp_path / "out"), "--json"]
    settings = ["--set", "run.target=0.8", "--set", "run.accuracy_over=1"]
    done = CliRunner().invoke(main, ["experiment", str(tmp_path / "small.toml"), *arguments, *settings])
    assert done.exit_code == 0, done.output
    plain, adaptive = kofn.read(tmp_path / "out").summary.to_dict("records")
    assert plain["after_s"] > 1.5 * plain["before_s"]
    assert adaptive["after_s"] < 0.8 * plain["after_s"]  # steps cost time on this machine, too
    assert adaptive["wire_ratio"] < 1 <= plain["wire_ratio"]
    assert len(json.loads(done.stdout)["claims"]) == 3
    assert len([*(tmp_path / "out" / "figures").glob("*.pdf")]) == 3
