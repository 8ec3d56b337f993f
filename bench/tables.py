"""A bench's command line, what it says while it measures, and how it prints rows of named figures."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """With the module's docstring as help, and --json."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """The type of an option: a whole number in this range."""

    def read(text: str) -> int:
        found = int(text) if re.fullmatch(r"-?[0-9]+", text, re.ASCII) else None
        if found is None or found < least or (most is not None and found > most):
            upwards = "or more" if most is None else f"to {most}"
            raise argparse.ArgumentTypeError(f"must be a whole number, {least} {upwards}, got {text!r}")
        return found

    return read


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(parts: Mapping[str, Sequence[Row]], *, as_json: bool) -> None:
    """All parts as one JSON object, or each as a table for every set of keys that its rows have."""
    if as_json:
        print(json.dumps(parts, indent=2))
        return
    from rich.table import Table  # noqa: PLC0415 - tests of a room alone use other parts of a bench

    from kofn.report.table import make_console  # noqa: PLC0415

    console = make_console()
    for title, rows in parts.items():
        for keys in dict.fromkeys(tuple(row) for row in rows):
            table = Table(*keys, title=title, title_justify="left")
            for row in rows:
                if tuple(row) == keys:
                    table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row.values()))
            console.print(table)
