"""The committed test program is p4c's output for its source."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.switch.p4runtime.harness import P4INFO, PROGRAM, PROGRAMS

COMPILER = "p4c-bm2-ss"


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on the PATH")
def test_test_program_is_up_to_date(tmp_path: Path) -> None:
    outputs = {PROGRAM: tmp_path / PROGRAM.name, P4INFO: tmp_path / P4INFO.name}
    command = [COMPILER, "--arch", "v1model", "-o", str(outputs[PROGRAM]), "--p4runtime-files", str(outputs[P4INFO])]
    subprocess.run([*command, "control_plane.p4"], cwd=PROGRAMS, check=True)
    for committed, made in outputs.items():
        assert made.read_text() == committed.read_text(), f"stale: run in tests/switch/programs: {' '.join(command)}"
