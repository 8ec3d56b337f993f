"""Workers that are processes on one accelerator of this machine, in a whole run with its checks."""

from pathlib import Path

import pytest

from bench import accelerator
from tests.pytorch import devices

pytestmark = pytest.mark.torch

if devices.KIND != "auto":
    pytest.skip("a pretend accelerator belongs to one process", allow_module_level=True)


@pytest.mark.root
@pytest.mark.parametrize("workers", [2, 4])
def test_replicas_of_processes_on_one_device_are_equal_to_the_bit(workers: int) -> None:
    """The run compares the replicas' digests after each iteration, and fails where two differ."""
    lines = accelerator.several_processes(workers, (64, 2))
    assert len(lines) == 4 and f"{workers} workers" in lines[0], Path.cwd()
