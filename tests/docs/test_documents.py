"""The documents are correct: linked files and anchors, the reference, the pictures' files, configurations."""

import re
import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.synthetic import times_alone
from kofn.experiments.experiment_file import ExperimentFile
from kofn.run.lab.lab_file import Lab
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.history import HistoryLog, TrainingHistory

from .markdown import ROOT, anchors, blocks, documents, links, prose

ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
SOURCES = ROOT / "docs" / "explanation" / "sources.md"


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_have_targets(path: Path) -> None:
    wrong = []
    for target in links(path):
        name, _, part = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (part and file.suffix == ".md" and part not in anchors(file)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_link_texts_that_are_paths_are_the_target(path: Path) -> None:
    """A link whose text is a path of the repository leads to that file."""
    found = re.findall(r"\[([\w-]+(?:/[\w.-]+)+)\]\(([^)#\s]+)", prose(path))
    assert not [text for text, target in found if (path.parent / target).resolve() != (ROOT / text).resolve()]


def test_steps_of_the_sources_are_defined_in_the_linked_files() -> None:
    """Each step's row names functions, classes, P4 controls or attributes, and links to the files that define them."""
    rows = re.findall(r"^\| (?!step )(.+?) \| (.+?) \| .+ \| .*\|$", prose(SOURCES), re.MULTILINE)
    wrong = []
    for step, code in rows:
        text = "\n".join((SOURCES.parent / target).read_text() for target in re.findall(r"\]\(([^)]+)\)", code))
        names = [part for name in re.findall(r"`([^`]+)`", code) for part in name.split(".")]
        defined = r"\b(?:def|class|control|int|int64_t|double) {0}\b|\b{0}(?:: [^=\n]+)? ="
        wrong += [(step, name) for name in names or ["no name"] if not re.search(defined.format(name), text)]
    assert len(rows) > 40
    assert not wrong


def tracked(*endings: str) -> list[str]:
    """Return the files of the checkout with these endings."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout: the list of files is git's")
    return [name for name in listed.stdout.decode().split("\0") if name.endswith(endings)]


def test_documents_named_in_code_exist() -> None:
    wrong = set()
    for name in tracked(".py", ".p4", ".c", ".h", ".toml", ".proto", ".sh"):
        for mention in re.findall(r"(?<!model's )\bdocs/[\w/-]+\.md", (ROOT / name).read_text()):
            if not (ROOT / mention).exists():
                wrong.add(f"{name}: {mention}")
    assert not wrong


def test_no_command_replaces_the_editable_install_by_a_copy() -> None:
    """Edits of the checkout would have no effect, and runs would not know their commit."""
    copies = re.compile(r"pip3? install (?!-e )(?:-\S+ )*['\"]?\.(?:\[[\w,]*\])?['\"]?(?![\w./\[])")
    assert copies.search("pip install '.[mpi]'") and copies.search("pip install .") and not copies.search("install ./a")
    texts = tracked(".py", ".md", ".toml", ".sh", ".ipynb", ".yml", ".yaml", "Makefile", "Dockerfile")
    found = {
        name for name in texts if name != "tests/docs/test_documents.py" and copies.search((ROOT / name).read_text())
    }
    assert not found


@pytest.mark.slow
def test_reference_is_generated_from_the_code() -> None:
    """The pages are made in a process of their own, because click keeps the help of a command that another test ran."""
    code = (
        "from kofn.cli.reference import FOLDER, documents\n"
        "print(*(name for name, made in documents().items() if (FOLDER / name).read_text() != made))"
    )
    stale = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not stale, "run `make reference`"


def test_boxes_of_the_pictures_are_files() -> None:
    pictures = [block.text for block in blocks(ARCHITECTURE) if block.note == "picture"]
    named = re.findall(r"[\w/]+\.(?:py|p4|c)\b", "\n".join(pictures))
    assert len(pictures) == 2
    assert len(named) > 30
    assert not [name for name in named if not (ROOT / name).is_file()]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_configurations_are_valid(path: Path, tmp_path: Path) -> None:
    """Every TOML block is a configuration, an experiment or a laboratory, except those of packages and parts of
    experiments."""
    for block in blocks(path):
        if block.language == "toml" and "[experiment]" in block.text:
            (tmp_path / "experiment.toml").write_text(block.text)
            ExperimentFile.load(tmp_path / "experiment.toml")
        elif block.language == "toml" and "[[machine]]" in block.text:
            Lab.of(tomllib.loads(block.text), path)
        elif block.language == "toml" and "[project" not in block.text and "[axes]" not in block.text:
            Config.of(tomllib.loads(block.text))


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.slow
def test_every_flag_of_the_switch_is_in_its_readme() -> None:
    run = [sys.executable, "-m", "kofn_switch", "--help"]
    text = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    readme = (ROOT / "switch" / "README.md").read_text()
    assert not [flag for flag in sorted(set(re.findall(r"--[a-z][a-z0-9-]+", text))) if flag not in readme]


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: `make docs` installs it")
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "site" / "index.html").exists()


def test_how_to_lists_everything_a_policy_sees() -> None:
    text = (ROOT / "docs" / "howto" / "objective.md").read_text()
    seen = [*(field.name for kind in (Forecast, TrainingHistory) for field in fields(kind)), "workers", "ks"]
    assert not [name for name in seen if f"`{name}`" not in text]


def test_how_to_has_the_pytorch_example() -> None:
    example = (ROOT / "examples" / "workloads" / "torch_digits.py").read_text().partition('"""\n\n')[2]
    assert example in [block.text for block in blocks(ROOT / "docs" / "howto" / "model.md")]


def test_policy_and_objective_of_the_how_to_choose() -> None:
    names: dict[str, Any] = {}
    for block in blocks(ROOT / "docs" / "howto" / "objective.md"):
        if block.language == "python":
            exec(block.text, names)
    forecast = times_alone(np.array([0.01, 0.02, 0.03]))
    assert names["deadline"](forecast).argmin() == 1, "two workers finish within 25 ms"
    log = HistoryLog(workers=3)
    for late, k in ((False, 3), (True, 1)):
        log.report(0, pb.Report(iteration=4, first_block_s=0.01, late=late), 2, 1.0)
        seen = replace(forecast, history=log.history(np.ones(3, np.bool_), 1.0))
        assert names["Alternate"](3).choose(seen) == k
