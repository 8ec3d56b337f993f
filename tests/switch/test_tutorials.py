"""The p4lang tutorials' exercises, unmodified, with this switch under BMv2's name on the PATH.

KOFN_TUTORIALS names a checkout of github.com/p4lang/tutorials. The exercises need p4c-bm2-ss, Mininet, iperf, and the
P4Runtime packages for python3. Each exercise's solution runs by its own `make run`, its hosts ping each other, and its
scripts are run as its README says; if BMv2 is on the PATH, also with BMv2, with the same results. If p4c's driver and
ptf are installed, the exercises' PTF tests run, too.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kofn_switch.identity import bmv2
from tests.switch.exercises import EXERCISES, SEEDED
from tests.switch.machine import OWN_MACHINE, PTF_OUTCOME, path_with

CHECKOUT = Path(os.environ.get("KOFN_TUTORIALS") or "/nonesuch")
TIMEOUT_S = 300
PINGS = re.compile(r"\*\*\* Results: .*\((\d+)/\d+ received\)")
NEEDED = ["p4c-bm2-ss", "mn", "ping", "iperf", "route", "arp"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.timeout(2 * TIMEOUT_S + 60),
    pytest.mark.skipif(not CHECKOUT.is_dir(), reason="KOFN_TUTORIALS names no checkout of p4lang/tutorials"),
    *(pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not on the PATH") for name in NEEDED),
]


def solved(exercise: str, folder: Path) -> Path:
    """Return a copy of the exercise in which its solution replaces the skeleton."""
    for shared in ("bin", "utils"):
        shutil.copytree(CHECKOUT / shared, folder / shared)
    copy = Path(shutil.copytree(CHECKOUT / "exercises" / exercise, folder / "exercises" / exercise))
    shutil.copytree(copy / "solution", copy, dirs_exist_ok=True)
    (copy / "seeded.py").write_text(SEEDED)
    return copy


def made(exercise: Path, target: str, lines: list[str], path: str) -> str:
    """Run `make` with these input lines and return its output. Mininet's prompt reads the lines and ends with its
    input.
    """
    command = [*OWN_MACHINE, "sh", "-c", f"ip link set lo up; exec make {target}"]
    environment = os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"}
    log = exercise / "make.log"
    typed = "".join(f"{line}\n" for line in lines).encode()
    with log.open("w") as output:
        subprocess.run(
            command,
            cwd=exercise,
            env=environment,
            input=typed,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    return log.read_text()


def outcome(exercise: str, folder: Path, *, ours: bool) -> object:
    """Return what the exercise's scripts received."""
    task = EXERCISES[exercise]
    copy = solved(exercise, folder)
    said = made(copy, "run", ["pingall", *task.lines], path_with(folder / "names", ours=ours))
    assert "did not start" not in said, said
    assert PINGS.findall(said) == [str(task.pings)], said
    return task.outcome(copy / "logs")


def test_every_exercise_is_known() -> None:
    assert EXERCISES.keys() == {folder.parent.name for folder in CHECKOUT.glob("exercises/*/solution")}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_solution_runs_as_on_bmv2(exercise: str, tmp_path: Path) -> None:
    found = outcome(exercise, tmp_path / "ours", ours=True)
    if bmv2():
        assert found == outcome(exercise, tmp_path / "theirs", ours=False)


@pytest.mark.skipif(not (shutil.which("p4c") and shutil.which("ptf")), reason="p4c or ptf is not on the PATH")
@pytest.mark.parametrize("exercise", sorted(path.parent.name for path in CHECKOUT.glob("exercises/*/runptf.sh")))
def test_ptf_tests_pass(exercise: str, tmp_path: Path) -> None:
    said = made(solved(exercise, tmp_path), "test", [], path_with(tmp_path / "names", ours=True))
    found = dict(PTF_OUTCOME.findall(said))
    assert found and set(found.values()) == {"ok"}, said
