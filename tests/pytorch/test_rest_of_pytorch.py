"""PyTorch's own tests of a process group on the backend "kofn" that `make test` leaves out."""

from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

from tests.pytorch import suite
from tests.pytorch.test_of_pytorch import FEW, passes

pytestmark = [pytest.mark.torch, pytest.mark.long]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in suite.names() if name not in FEW])
def test_pytorchs_own_test_passes(name: str, tmp_path: Path) -> None:
    passes(name, tmp_path)
