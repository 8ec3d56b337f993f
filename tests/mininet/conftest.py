"""Fixtures of the network's tests: a separate outer machine for each, and both drivers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.mininet.outer_machine import FOLDER, PYTHON, Machine

sys.path.insert(0, str(FOLDER))  # its modules are scripts, not a package


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    script = "ip link set lo up && echo ready && exec sleep 1000"
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"ready\n"
        yield Machine(holder, tmp_path / "state")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


@cache
def mininet_obstacle() -> str | None:
    """Return why mininet is unusable, for the Python that boot.py runs with, not the tests' own."""
    script = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import drivers; print(drivers.missing() or '')"
    result = subprocess.run([PYTHON, "-B", "-c", script], capture_output=True, text=True, check=True)
    return result.stdout.strip() or None


@pytest.fixture(params=["netns", "mininet"])
def driver(request: pytest.FixtureRequest) -> str:
    if request.param == "mininet" and (obstacle := mininet_obstacle()):
        pytest.skip(obstacle)
    return request.param
