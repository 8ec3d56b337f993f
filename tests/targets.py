"""The switches that a test runs on; BMv2 is skipped, with its reason, where it is not installed."""

import shutil
import sys
from typing import Any

import pytest

BMV2 = "simple_switch_grpc"

COMMANDS = {"embedded": [sys.executable, "-m", "kofn.switch"], "bmv2": [BMV2]}
"""How each command line begins."""

TARGETS = [
    "embedded",
    pytest.param(
        "bmv2",
        marks=[pytest.mark.bmv2, pytest.mark.skipif(not shutil.which(BMV2), reason=f"{BMV2} is not on the PATH")],
    ),
]


async def read(switch: Any, entity: Any) -> list[Any]:
    """What a finsy client reads, whose annotations say that its `read` is to be awaited first."""
    return [entry async for entry in switch.read(entity)]
