"""Set-up and Makefile: pinned dependencies and offered targets."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    *("help", "run", "chaos", "compare", "doctor", "stop", "clean", "test", "quick", "long", "test-lab", "test-k8s"),
    *(
        "torch-tests",
        "accelerator",
        "check",
        "explore",
        "fuzz",
        "soak",
        "results",
        "docs",
        "reference",
        "crd",
        "picture",
    ),
    *("screenshots", "header", "p4", "proto", "shell", "setup"),
)

INPUTS = ("Makefile", "pyproject.toml", "constraints.txt", "requirements.txt", "kofn/run/setup.sh")
"""The files that setup.sh reads first."""


def normal(name: str) -> str:
    return re.split(r"[<>=!\[;]", name)[0].strip().lower().replace("_", "-")


def test_every_dependency_is_pinned() -> None:
    projects = [
        tomllib.loads(path.read_text())["project"]
        for path in (ROOT / "pyproject.toml", *ROOT.glob("[a-z]*/pyproject.toml"))
    ]
    extras = [name for each in projects for names in each.get("optional-dependencies", {}).values() for name in names]
    named = {normal(name) for each in projects for name in each.get("dependencies", ())} | {*map(normal, extras)}
    wanted = {name for name in named if not name.startswith("kofn")}
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line]
    assert all("==" in line for line in pinned)
    assert wanted <= {normal(line) for line in pinned}


def test_help_is_the_default_and_names_every_target() -> None:
    text = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True).stdout
    assert tuple(line.split()[0] for line in text.splitlines() if line.startswith("  ")) == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_targets_are_well_formed(target: str) -> None:
    subprocess.run(["make", "-C", ROOT, "--dry-run", target], capture_output=True, check=True)


def test_setup_refuses_unknown_arguments() -> None:
    result = subprocess.run(
        [ROOT / "kofn" / "run" / "setup.sh", "everything"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert (
        "the argument must be none, 'lab', 'check', 'quick', 'dev', 'docs', 'torch' or 'shell', got 'everything'"
        in result.stderr
    )


@pytest.mark.slow
def test_setup_names_an_unreachable_index(tmp_path: Path) -> None:
    """pip's last line blames conflicting versions instead."""
    (tmp_path / "kofn" / "run").mkdir(parents=True)
    for name in INPUTS:
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "mn").touch(mode=0o755)  # so that nothing is installed on the machine
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "1"}
    environment = own | nowhere | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run(
        [tmp_path / "kofn" / "run" / "setup.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 4
    assert run.stderr.splitlines()[-1].startswith("setup: the package index cannot be reached: no network, or a proxy")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
@pytest.mark.parametrize(
    ("made", "code", "words"),
    [(True, 0, "is read-only: .venv is used as it is"), (False, 1, "must be writable, as it has no environment yet")],
)
def test_setup_leaves_a_read_only_folder_unchanged(made: bool, code: int, words: str, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "kofn" / "run").mkdir(parents=True)
    for name in INPUTS:
        shutil.copy(ROOT / name, checkout / name)
    if made:
        (checkout / ".venv" / "bin").mkdir(parents=True)
        (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && "$1/kofn/run/setup.sh"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(checkout)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, words in run.stderr) == (code, True), run.stderr
