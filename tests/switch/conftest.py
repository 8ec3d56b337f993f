"""Fixtures of all tests of the embedded switch."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs that nobody needs again stay out of the user's cache; switches that tests start inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KOFN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
