"""Tables without a terminal and in one that is too narrow; tables of many workers."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from kofn.report.summary import Summary
from kofn.report.table import PlainTable, make_console
from kofn.run.display import say
from kofn_host.workload import ACCURACY
from tests.docs.markdown import ROOT
from tests.experiments.test_chaos import SUMMARY

WIDE = PlainTable(["name", *(f"column {number}" for number in range(12))], [["first", *["123.456 ms"] * 12]])


def printed(table: PlainTable, width: int | None) -> list[str]:
    """Return the table's lines in a terminal of this width, without padding; None: in a pipe."""
    file = io.StringIO()
    console = make_console(file=file) if width is None else Console(file=file, width=width)
    console.print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_pipe_sets_no_width() -> None:
    heading, row = printed(WIDE, None)
    assert len(row) > 100
    assert row.split("  ") == ["first", *["123.456 ms"] * 12]
    assert heading.endswith("column 11")


def test_table_wider_than_the_terminal_continues_below() -> None:
    lines = printed(WIDE, 80)
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines] == ["name", "first"] * 2
    assert "".join(lines).count("123.456 ms") == 12
    assert [f"column {number}" in "".join(lines) for number in range(12)] == [True] * 12


def test_long_texts_are_cut_where_one_part_is_requested() -> None:
    rows = [[f"run-{number}", "1.0 MB", "ok", "a, b", "kofn run " + "x" * 100] for number in range(24)]
    table = PlainTable(
        ("run", "size", "result", "trials", "command"), rows, texts=("result", "trials", "command"), cut=True
    )
    lines = printed(table, 80)
    assert len(lines) == 25 and max(map(len, lines)) == 80
    assert all(
        line.split()[:6] == [f"run-{number}", "1.0", "MB", "ok", "a,", "b"] for number, line in enumerate(lines[1:])
    )
    assert all(line.endswith("x…") for line in lines[1:]), "short cells must leave their room to long ones"
    assert printed(table, None)[1].endswith("x" * 100)
    assert max(map(len, printed(table, 30))) <= 30


def test_cell_wider_than_the_terminal_is_folded() -> None:
    lines = printed(PlainTable(["label", "all"], [["k used", ", ".join(f"{k} (100)" for k in range(64))]]), 40)
    assert max(map(len, lines)) <= 40
    assert not any("…" in line for line in lines)
    assert lines[-1].split()[-1] == "(100)"
    assert lines[1].startswith("k used")


@pytest.mark.parametrize("width", [80, None])
def test_many_workers_leave_the_labels_unchanged(width: int | None) -> None:
    ranks = range(32)
    entry = replace(
        SUMMARY,
        late_by_worker=tuple(ranks),
        share_by_worker=(1 / 32,) * 32,
        age_by_worker=(0.5,) * 32,
        waiting_by_worker=(0.0, 0.0, *(0.25 for _ in ranks[2:30]), 0.0, 0.25),
    )
    lines = printed(Summary(job=1, metric=ACCURACY, trials=(entry, entry)).table(), width)
    rows = {line[:25].strip(): line[25:].strip() for line in lines}
    assert rows["late gradients"].startswith("496 (0 .. 31, median 16)")
    assert rows["share of the sums"].startswith("3.12 .. 3.12, median 3.12 %")
    assert rows["pending in the end"].startswith("7.25 of workers 2-29, 31; late for")
    assert {"compute/code/net/wait/step", "corrupted packets dropped"} & {line.split("  ")[0] for line in lines}


def test_texts_are_printed_as_they_are() -> None:
    """`:boom:` is an emoji for rich, and [red] a colour."""
    text = "own:boom:x and [red]"
    file = io.StringIO()
    for console in (make_console(file=file), Console(file=file, width=200)):
        console.print(PlainTable(["trial", text], [["all", text]]))
        say(console, text)
    assert file.getvalue().count(text) == 6
    make_console(file=(file := io.StringIO())).print(text)
    assert file.getvalue() == f"{text}\n"


def test_all_consoles_of_kofn_print_texts_as_they_are() -> None:
    made = {path.name for path in (ROOT / "kofn").rglob("*.py") if re.search(r"(?<!_)\bConsole\(", path.read_text())}
    assert made == {"table.py"}
