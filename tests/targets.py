"""The switches on which tests run; BMv2 is skipped, with its reason, where it is not installed."""

import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from kofn_switch.identity import BMV2, bmv2
from tests.ports import own_port


def switch_command(target: str) -> list[str]:
    """Return the beginning of a switch's command line; a BMv2 that is built with Thrift needs its own port."""
    if target == "embedded":
        return [sys.executable, "-m", "kofn_switch"]
    if not has_thrift():
        return [BMV2]
    with own_port() as port:
        return [BMV2, "--thrift-port", str(port)]


@cache
def has_thrift() -> bool:
    """Return whether BMv2 is built with Thrift."""
    return b"--thrift-port" in subprocess.run([BMV2, "--help"], capture_output=True, check=False).stdout


def on_bmv2(*marks: pytest.MarkDecorator) -> Any:
    """Return the BMv2 target of a test, with further marks."""
    missing = pytest.mark.skipif(bmv2() is None, reason=f"{BMV2} is not on the PATH")
    return pytest.param("bmv2", marks=[pytest.mark.bmv2, missing, *marks])


TARGETS = ["embedded", on_bmv2()]


async def read(switch: Any, entity: Any) -> list[Any]:
    """Read entities with a finsy client; its annotations wrongly say that `read` must be awaited first."""
    return [entry async for entry in switch.read(entity)]
