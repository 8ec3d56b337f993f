"""Tests on an accelerator: the pretend one, or with `make accelerator` that of this machine (marker `accelerator`)."""

import os

import pytest

collect_ignore_glob = [] if os.environ.get("KOFN_TEST_DEVICE") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent.name == "on_device"]
    if not here:
        return
    import torch  # noqa: PLC0415

    devices = torch.accelerator.device_count()
    for item in here:
        item.add_marker(pytest.mark.accelerator)
        if not devices:
            item.add_marker(pytest.mark.skip(reason="torch.accelerator finds no device"))
        elif devices < 3 and item.get_closest_marker("threads"):
            item.add_marker(pytest.mark.skip(reason="its three workers are threads, and need a device each"))
