"""Fixtures of all tests of the embedded switch."""

from collections.abc import Iterator

import pytest

from kofn.switch.engine.engine import Engine
from tests.switch.every_table import PROGRAM


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs that nobody needs again stay out of the user's cache; switches that tests start inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KOFN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def loaded() -> Engine:
    """A switch with the program of every kind of table."""
    engine = Engine({})
    engine.load(PROGRAM.read_bytes())
    return engine


@pytest.fixture
def engine(loaded: Engine) -> Engine:
    """The same, as just loaded."""
    loaded.load(PROGRAM.read_bytes())
    return loaded
