"""The Python code of the documents and the notebook works as written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kofn_common.config.schema import Config
from tests.run.fake_run import two_trials
from tests.system.collectives.crews import threads

from .markdown import ROOT, blocks

PAGE = ROOT / "docs" / "howto" / "python.md"
NOTEBOOK = ROOT / "examples" / "choosing-k.ipynb"
QUESTION_NOTEBOOK = ROOT / "examples" / "question.ipynb"

EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
for cell in notebook.cells:
    cell.pop("outputs", None)
    if cell.cell_type == "code":
        cell.outputs = []
nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture
def latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with a run."""
    monkeypatch.chdir(tmp_path)
    return two_trials(tmp_path / "runs" / "latest").path


def value(text: str, names: dict[str, Any]) -> Any:
    """Run the text and return the value of its last line, as a notebook shows it."""
    *before, last = text.strip().splitlines()
    exec("\n".join(before), names)
    return eval(last, names)


def test_run_is_read_in_three_lines(latest: Path) -> None:
    texts = [block.text for path in (PAGE, ROOT / "README.md") for block in blocks(path) if block.note == "three lines"]
    assert len(texts) == 2
    for text in texts:
        assert len(text.split("\n\n")) == 2 and len([line for line in text.splitlines() if line]) == 3
        accuracy = value(text, {})
        assert accuracy["throughput"].index.tolist() == list(range(1, 201))
        assert accuracy["all", 200] == pytest.approx(0.97, abs=0.01)


@pytest.mark.slow
def test_python_how_to_works(latest: Path) -> None:
    names: dict[str, Any] = {}
    values = {block.note: value(block.text, names) for block in blocks(PAGE) if block.language == "python"}
    assert values["a simulation"].trial.tolist() == ["fixed:2", "all"]
    assert values["a simulation"].iterations.tolist() == [12, 12]
    ratio: pd.DataFrame = values["an experiment"]
    assert ratio["model.learning_rate"].tolist() == [0.05, 0.05, 0.1, 0.1]
    assert ratio[ratio["contender"] == "all"]["ratio"].tolist() == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worker", "output"), [("a worker", "its output"), ("a worker that streams", "output of a worker that streams")]
)
def test_three_workers_print_the_how_tos_output(tmp_path: Path, worker: str, output: str) -> None:
    texts = {block.note: block.text for block in blocks(ROOT / "docs" / "howto" / "communicator.md")}
    (tmp_path / "worker.py").write_text(texts[worker])
    commands = [[sys.executable, "worker.py", str(rank)] for rank in range(3)]
    workers = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for command in commands]
    assert [worker.communicate(timeout=60)[0] for worker in workers] == [texts[output]] * 3


def test_copy_of_the_ring_is_a_users_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {block.note: block.text for block in blocks(ROOT / "docs" / "howto" / "collective.md")}
    *copying, run = texts["a copy of the ring"].strip().splitlines()
    (tmp_path / "host").symlink_to(ROOT / "host")
    subprocess.run("\n".join(copying), shell=True, check=True, cwd=tmp_path)
    assert run == ".venv/bin/kofn run mine.toml --set job.collective=mine:Mine --trial all"
    assert Config.load(tmp_path / "mine.toml") == Config()
    monkeypatch.syspath_prepend(tmp_path)
    with threads("mine:Mine", 2) as crew:
        assert {type(each).__module__ for each in crew.communicators} == {"mine"}
        means = crew.run(lambda one: one.all_reduce(np.full(3, one.rank, np.float32), op="mean").result(20))
    assert [mean.tolist() for mean in means] == [[0.5] * 3] * 2


def executed(notebook: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """Execute a notebook in a separate folder, and return the data of its outputs."""
    shutil.copy(notebook, tmp_path)
    environment = {
        **os.environ,
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
    }
    command = [sys.executable, "-c", EXECUTE, notebook.name, "executed.ipynb"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [
        output.get("data", {})
        for cell in json.loads((tmp_path / "executed.ipynb").read_text())["cells"]
        for output in cell.get("outputs", [])
    ]


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_an_experiment_draws_two_figures(tmp_path: Path) -> None:
    assert sum("image/png" in data for data in executed(QUESTION_NOTEBOOK, tmp_path)) >= 2


@pytest.mark.slow
def test_notebook_works(tmp_path: Path) -> None:
    shown = executed(NOTEBOOK, tmp_path)
    assert sum("image/png" in data for data in shown) == 2
    (table,) = ("".join(data["text/html"]) for data in shown if "<svg" in "".join(data.get("text/html", "")))
    assert "all (baseline)" in table
    progress = "".join(shown[0]["text/plain"])
    assert progress.startswith("report: runs/notebook-"), "the progress line replaces the lines before"
    assert float("".join(shown[-1]["text/plain"])) > 1.2, "waiting for all workers takes longer"
