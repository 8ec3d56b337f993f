"""Each row of docs/reference/where.md names a symbol that its file defines, or a text that stands there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .markdown import ROOT, links

PAGE = ROOT / "docs" / "reference" / "where.md"

ROW = re.compile(
    r"^\| (?P<question>[^|]+\?) \| `(?P<symbol>[^`|]+)` \| \[(?P<path>[^\]|]+)\]\((?P<target>[^)|]+)\) \|$"
)

HEADINGS = {"| question | symbol | file |", "|---|---|---|"}

NAME = re.compile(r"\w+(?:\.\w+)*")
"""A symbol that is a name must be defined; any other symbol is text."""

Row = tuple[str, str, str]
"""A question, a symbol, and a link's target."""

DEFINITIONS = {
    ".c": r"^(?!\s|return\b|else\b)[^;#\n]*\b{0}\([^;{{]*\)\s*\{{",
    ".h": r"^(?!\s|return\b|else\b)[^;#\n]*\b{0}\([^;{{]*\)\s*\{{",
    ".p4": r"^\s*(?:control|action|table|header|register<.*>\(\w+\)) {0}\b",
    ".sh": r"^{0}\(\) *\{{",
    ".js": r"^(?:export )?(?:class|function|const) {0}\b",
}
"""The pattern of a name's definition, by the file's suffix."""


def table_lines() -> list[str]:
    """Return the lines of the page's tables."""
    return [line for line in PAGE.read_text().splitlines() if line.startswith("|")]


def rows() -> list[Row]:
    """Return the rows of all tables."""
    found = [ROW.match(line) for line in table_lines()]
    return [(row["question"], row["symbol"], row["target"]) for row in found if row]


def defined_in(body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield the names that statements define, each with the body of its definition."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement.name, []
            case ast.ClassDef():
                yield statement.name, statement.body
            case ast.Assign():
                yield from ((target.id, []) for target in statement.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, []


def defines_in_python(text: str, symbol: str) -> bool:
    """Return whether a module defines a function, a class or a constant, or a class its member."""
    body = ast.parse(text).body
    for part in symbol.split("."):
        found = dict(defined_in(body))
        if part not in found:
            return False
        body = found[part]
    return True


def holds(path: Path, symbol: str) -> bool:
    """Return whether a file defines a name, or holds a text."""
    text = path.read_text()
    if not NAME.fullmatch(symbol):
        return re.search(rf"(?<!\w){re.escape(symbol)}(?!\w)", text) is not None
    if path.suffix == ".py":
        return defines_in_python(text, symbol)
    return re.search(DEFINITIONS[path.suffix].format(re.escape(symbol)), text, re.MULTILINE) is not None


def test_every_line_of_a_table_is_a_row() -> None:
    lines = table_lines()
    assert not [line for line in lines if line not in HEADINGS and not ROW.match(line)]
    assert len(rows()) > 60


def test_no_question_stands_twice() -> None:
    questions = [question for question, _, _ in rows()]
    assert not {question for question in questions if questions.count(question) > 1}


def test_sections_can_be_read_at_a_glance() -> None:
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert not [section.partition("\n")[0] for section in sections if section.count("\n| ") - 1 > 16]


def test_links_have_targets() -> None:
    assert not [target for target in links(PAGE) if not (PAGE.parent / target.partition("#")[0]).exists()]


def test_link_of_each_row_is_a_file_and_is_shown() -> None:
    found = [ROW.match(line) for line in table_lines()]
    shown = [(row["path"], (PAGE.parent / row["target"]).resolve()) for row in found if row]
    assert not [path for path, target in shown if not target.is_file() or target != ROOT / path]


@pytest.mark.parametrize(("question", "symbol", "target"), rows(), ids=[f"{row[2]}:{row[1]}" for row in rows()])
def test_file_of_each_row_defines_its_symbol(question: str, symbol: str, target: str) -> None:
    assert holds(PAGE.parent / target, symbol), f"{target} must define `{symbol}`, which answers: {question}"


@pytest.mark.parametrize(
    ("path", "symbol"),
    [
        ("kofn/report/summary.py", "brief_rows"),
        ("kofn/report/brief.py", "Summary"),
        ("kofn/report/interval.py", "Interval.off"),
        ("host/kofn_host/protocol/core.c", "in_flight_due"),
        ("host/kofn_host/protocol/in_flight.c", "flight_due"),
        ("p4src/leaf_below.p4", "LeafDue"),
        ("p4src/slot.p4", "slot_count >= met"),
        ("kofn/run/setup.sh", "quick"),
    ],
)
def test_neighbour_import_use_and_part_of_a_name_are_no_definition(path: str, symbol: str) -> None:
    assert not holds(ROOT / path, symbol)
