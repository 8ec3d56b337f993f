"""The examples in docstrings."""

import doctest
from importlib import import_module

import pytest

from tests.workspace import ROOT, modules

EXAMPLES = [name for name, path in modules().items() if ">>> " in path.read_text()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_docstrings_run(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried and not failed


def test_examples_outside_of_the_rooms_are_included() -> None:
    others = [
        path.relative_to(ROOT) for folder in ("bench", "mininet", "p4src") for path in (ROOT / folder).rglob("*.py")
    ]
    assert not [path for path in others if ">>> " in (ROOT / path).read_text()]
