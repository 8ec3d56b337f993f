"""Fixtures of PyTorch's tests, which are skipped without PyTorch; workers are threads, and sockets need namespaces."""

import os
from collections.abc import Iterator

import pytest

from tests.system.collectives.switched import close_all

if os.environ.get("KOFN_TEST_DEVICE"):
    from tests.pytorch import devices  # noqa: F401  # before all tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "pytorch":
            item.add_marker(pytest.mark.root)
            if os.geteuid() != 0:
                item.add_marker(pytest.mark.skip(reason="needs root: network namespaces"))


@pytest.fixture(scope="package", autouse=True)
def _switch() -> Iterator[None]:
    """Start one switch for all crews of this process; each worker has one thread."""
    import torch  # noqa: PLC0415

    from tests.pytorch import devices  # noqa: PLC0415

    torch.set_num_threads(1)
    devices.start()
    yield
    close_all()


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> None:
    """Clear DDP's note of the model whose forward pass is under way, which passes in threads leave behind, and the
    communicator of an earlier test.
    """
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    from kofn_torch import process_group  # noqa: PLC0415

    DistributedDataParallel._active_ddp_module = None
    process_group._used.set(None)
