"""Fixtures: one running switch of each kind for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest

from tests.switch.p4runtime.harness import Target, running
from tests.targets import TARGETS


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as switch:
        yield switch


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Yield an embedded switch, for features beyond BMv2, or where BMv2 deviates from the specification."""
    with running("embedded", tmp_path_factory.mktemp("embedded-only")) as switch:
        yield switch


@pytest.fixture(autouse=True)
def _root_where_needed(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root: the switch's ports are in a network namespace of its own")
