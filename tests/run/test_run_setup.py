"""Set-up and Makefile: what is pinned, what is offered."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    *(
        "help",
        "run",
        "chaos",
        "compare",
        "doctor",
        "stop",
        "clean",
        "test",
        "check",
        "fuzz",
        "soak",
        "p4",
        "proto",
        "shell",
    ),
)


def normal(name: str) -> str:
    return re.split(r"[<>=!\[;]", name)[0].strip().lower().replace("_", "-")


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line]
    assert all("==" in line for line in pinned)
    assert {normal(name) for name in wanted} <= {normal(line) for line in pinned}


def test_help_is_the_default_and_names_every_target() -> None:
    text = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True).stdout
    assert tuple(line.split()[0] for line in text.splitlines() if line.startswith("  ")) == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_targets_are_well_formed(target: str) -> None:
    subprocess.run(["make", "-C", ROOT, "--dry-run", target], capture_output=True, check=True)


def test_setup_refuses_what_it_does_not_know() -> None:
    result = subprocess.run([ROOT / "run" / "setup.sh", "everything"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "unknown argument 'everything': none, 'dev' or 'shell' is allowed" in result.stderr
