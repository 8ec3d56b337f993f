"""The p4lang tutorials' exercises, unmodified, with this switch under BMv2's name on the PATH.

KOFN_TUTORIALS names a checkout of github.com/p4lang/tutorials.  Their own requirements have to be there: p4c-bm2-ss,
Mininet, the P4Runtime packages for python3, sudo.  Each exercise's solution is run by its own `make run`, and its hosts
ping each other; with BMv2 on the PATH as well, with the same results.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kofn.switch.cli.names import make_names
from tests.targets import BMV2

CHECKOUT = Path(os.environ.get("KOFN_TUTORIALS") or "/nonesuch")
TIMEOUT_S = 300
RESULTS = re.compile(r"\*\*\* Results: .*")

pytestmark = [
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.skipif(not CHECKOUT.is_dir(), reason="KOFN_TUTORIALS names no checkout of p4lang/tutorials"),
    pytest.mark.skipif(not shutil.which("p4c-bm2-ss"), reason="p4c-bm2-ss is not on the PATH"),
]

EXERCISES = sorted(path.parent.parent.name for path in CHECKOUT.glob("exercises/*/solution/*.p4"))


def solved(exercise: str, folder: Path) -> Path:
    """A copy of the exercise with its solution in the place of its skeleton."""
    shutil.copytree(CHECKOUT / "utils", folder / "utils")
    copy = Path(shutil.copytree(CHECKOUT / "exercises" / exercise, folder / "exercises" / exercise))
    for solution in (copy / "solution").glob("*.p4"):
        shutil.copy(solution, copy)
    return copy


def ping_all(exercise: Path, path: str) -> str:
    """What `make run` and `pingall` say.  The prompt reads its line as soon as it is there, and ends with its input."""
    command = ["unshare", "-n", "sh", "-c", "ip link set lo up; exec make run"]
    environment = os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"}
    log = exercise / "make.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, cwd=exercise, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        process.communicate(b"pingall\n", timeout=TIMEOUT_S)
    return log.read_text()


@pytest.mark.parametrize("exercise", dict.fromkeys(EXERCISES))
def test_a_solution_runs_as_on_bmv2(exercise: str, tmp_path: Path) -> None:
    make_names(tmp_path / "names")
    ours = ping_all(solved(exercise, tmp_path / "ours"), f"{tmp_path}/names:{os.environ['PATH']}")
    assert "did not start" not in ours, ours
    assert RESULTS.findall(ours), ours
    if shutil.which(BMV2):
        theirs = ping_all(solved(exercise, tmp_path / "theirs"), os.environ["PATH"])
        assert RESULTS.findall(ours) == RESULTS.findall(theirs)
