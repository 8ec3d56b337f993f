"""The switches that a test runs on; BMv2 is skipped, with its reason, where it is not installed."""

import shutil
import sys

import pytest

BMV2 = "simple_switch_grpc"

COMMANDS = {"embedded": [sys.executable, "-m", "switch"], "bmv2": [BMV2]}
"""How each command line begins."""

TARGETS = [
    "embedded",
    pytest.param(
        "bmv2",
        marks=[pytest.mark.bmv2, pytest.mark.skipif(not shutil.which(BMV2), reason=f"{BMV2} is not on the PATH")],
    ),
]
