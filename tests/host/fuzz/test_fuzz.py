"""The short form of the worker's part of `make fuzz`."""

import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.slow
def test_sanitizers_find_nothing() -> None:
    command = [sys.executable, "-m", "tests.host.fuzz", "--seconds", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *parts, last = done.stdout.splitlines()
    assert [part.partition(":")[0] for part in parts] == [
        "core, address,undefined", "engine, address,undefined", "engine, thread"
    ]  # fmt: skip
    assert last == "nothing found"
