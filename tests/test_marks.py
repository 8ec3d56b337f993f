"""A file is imported under -m if one of its tests may match."""

from pathlib import Path

import pytest

from tests.marks import may_match

QUICK = "not (slow or root)"


@pytest.mark.parametrize(
    ("text", "quick"),
    [
        ("def test_a(): ...", True),
        ("@pytest.mark.slow\ndef test_a(): ...", False),
        ("@pytest.mark.slow\ndef test_a(): ...\ndef test_b(): ...", True),
        ("pytestmark = [pytest.mark.slow, pytest.mark.root]\ndef test_a(): ...", False),
        ("@pytest.mark.root\nclass TestA:\n def test_a(self): ...", False),
        ("@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.slow)])\ndef test_a(a): ...", True),
        ("from tests.pytorch.suite import *", True),
    ],
)
def test_file_is_imported_if_a_test_may_match(text: str, quick: bool, tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text)
    assert may_match(path, QUICK) == quick
    assert may_match(path, "slow"), "a conftest.py or an imported mark may make any test slow"
