"""Fixtures of all tests of the embedded switch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kofn_switch.engine.engine import Engine
from tests.switch.every_table import PROGRAM

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "compiled"


@pytest.fixture(scope="module", autouse=True)
def own_cache() -> Iterator[None]:
    """Keep compiled test programs out of the user's cache, for the next run of the tests. Switches that tests start
    inherit the setting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KOFN_CACHE", str(CACHE))
        yield


@pytest.fixture(scope="module")
def loaded() -> Engine:
    """Return a switch with the program that has every kind of table."""
    engine = Engine({})
    engine.load(PROGRAM.read_bytes())
    return engine


@pytest.fixture
def engine(loaded: Engine) -> Engine:
    """Return the same switch in the state after loading."""
    loaded.load(PROGRAM.read_bytes())
    return loaded
