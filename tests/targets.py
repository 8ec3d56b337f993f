"""The switches that a test runs on; BMv2 is skipped, with its reason, where it is not installed."""

import sys
from typing import Any

import pytest

from kofn.run.switch_identity import BMV2, bmv2
from tests.ports import own_port


def switch_command(target: str) -> list[str]:
    """How its command line begins; where BMv2 has Thrift, each needs a port of its own."""
    if target == "embedded":
        return [sys.executable, "-m", "kofn.switch"]
    with own_port() as port:
        return [BMV2, "--thrift-port", str(port)]


def on_bmv2(*marks: pytest.MarkDecorator) -> Any:
    """The target of a test that is for BMv2, with more marks."""
    missing = pytest.mark.skipif(bmv2() is None, reason=f"{BMV2} is not on the PATH")
    return pytest.param("bmv2", marks=[pytest.mark.bmv2, missing, *marks])


TARGETS = ["embedded", on_bmv2()]


async def read(switch: Any, entity: Any) -> list[Any]:
    """What a finsy client reads, whose annotations say that its `read` is to be awaited first."""
    return [entry async for entry in switch.read(entity)]
