"""The lint of English finds what it is for, and nothing in good sentences."""

from pathlib import Path

import pytest

from tests.english import faults

CODE = '''
"""{module}"""

def check(k: int) -> int:
    """{function}"""
    raise ValueError("{message}")
'''

GOOD = {"module": "Checks of k.", "function": "Return k.", "message": "k must be 1 to 4, got 5"}


@pytest.mark.parametrize(
    ("changed", "line", "words"),
    [
        ({"module": "What is checked of k."}, 2, "begins with 'What'"),
        ({"function": "Of a job, its k."}, 5, "begins with 'Of'"),
        ({"message": f"k is 5: 1 to 4 is {'allowed'}"}, 6, "must say what must hold"),
        ({}, 0, ""),
    ],
)
def test_a_fault_in_code_is_found_at_its_line(changed: dict[str, str], line: int, words: str, tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(CODE.format(**(GOOD | changed)))
    found = list(faults(path))
    assert [at for at, _ in found] == ([line] if line else [])
    assert all(words in fault for _, fault in found)


def test_history_is_found_in_a_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# Slots\n\nA slot has a block.\nIt used to have two.\n")
    assert [at for at, _ in faults(path)] == [4]
