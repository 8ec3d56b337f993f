"""A test that takes too long fails; Hypothesis neither shrinks nor repeats it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TOO_LONG = """
import time
import pytest
from hypothesis import given, strategies

@pytest.mark.timeout(1)
@given(strategies.integers())
def test_draws(number):
    with open("drawn", "a") as file:
        print(number, file=file)
    time.sleep(0.4)
"""


def test_hypothesis_does_not_take_a_time_out_for_a_finding(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TOO_LONG)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "test_it.py"]
    root = str(Path(__file__).parents[1])
    ended = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True, check=False)
    assert "TimeOut: Timeout (>1.0s)" in ended.stdout and "1 failed" in ended.stdout, ended.stdout + ended.stderr
    assert 1 < len((tmp_path / "drawn").read_text().split()) <= 3
