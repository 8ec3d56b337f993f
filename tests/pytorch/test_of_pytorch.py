"""PyTorch's own tests of a process group on the backend "kofn"; each rank is a process, through a real switch.

Others are in test_rest_of_pytorch.py: `make torch-tests` runs all of them, and prints which do not apply and why.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

from tests.system.collectives.crews import addresses
from tests.system.collectives.switched import EMBEDDED, HOSTS, started

pytestmark = pytest.mark.torch

FEW = [f"test_{name}" for name in ("all_reduce_sum_async", "all_gather", "barrier", "broadcast", "gather", "irecv")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FEW)
def test_pytorchs_own_test_passes(name: str, tmp_path: Path) -> None:
    passes(name, tmp_path)


def passes(name: str, folder: Path) -> None:
    """Run one of PyTorch's tests; skip the test that calls this if PyTorch's does not apply."""
    from tests.pytorch import suite  # noqa: PLC0415  # seconds, which each process that collects tests would take

    outcome = suite.judge(name, started(EMBEDDED).place(addresses(HOSTS)), folder)
    if outcome.startswith("skipped: "):
        pytest.skip(outcome.removeprefix("skipped: "))
    assert outcome == "passed"
