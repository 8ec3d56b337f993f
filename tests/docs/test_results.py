"""Figures are printed from stored measurements, and documents quote no others."""

import re
from pathlib import Path

import pytest

from bench.results import PAGE, figures, page

ROOT = Path(__file__).parents[2]

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)+(?![\w.])")
"""A measured number: one with a decimal point."""


def section(text: str, heading: str) -> str:
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_results_are_printed_from_the_stored_figures() -> None:
    assert PAGE.read_text() == page(figures()), "docs/RESULTS.md is stale: run `make results`"


def test_every_figure_has_its_source() -> None:
    for name, one in figures().items():
        assert one.commit and one.date and one.output and one.command, name


@pytest.mark.parametrize(
    ("document", "heading"),
    [
        ("README.md", "What it is worth"),
        ("README.md", "One result"),
        ("docs/explanation/experiments.md", "Findings"),
    ],
)
def test_quoted_numbers_are_stored_figures(document: str, heading: str) -> None:
    stored = {number for one in figures().values() for line in one.output for number in NUMBER.findall(line)}
    quoted = NUMBER.findall(section((ROOT / document).read_text(), heading))
    assert len(quoted) > 5
    assert set(quoted) <= stored


@pytest.mark.parametrize("name", ["control", "schedule"])
def test_numbers_of_a_paragraph_that_names_figures_are_in_them(name: str) -> None:
    found, quoted = figures(), 0
    for paragraph in (ROOT / "docs" / "explanation" / f"{name}.md").read_text().split("\n\n"):
        if names := re.findall(r"RESULTS\.md#([a-z0-9-]+)", paragraph):
            stored = {number for each in names for line in found[each].output for number in NUMBER.findall(line)}
            assert set(NUMBER.findall(paragraph)) <= stored, paragraph
            quoted += 1
    assert quoted > 0


def test_the_quoted_run_is_the_stored_one() -> None:
    stored = figures()["first-run"].output
    for document in ("README.md", "docs/tutorial/first-run.md"):
        text = (ROOT / document).read_text()
        block = next(part for part in text.split("```") if "One worker alone:" in part)
        lines = [line.rstrip() for line in block.splitlines()[1:]]
        assert [line for line in lines if line and line not in stored] == [], document
