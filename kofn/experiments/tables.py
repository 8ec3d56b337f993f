"""Tables of text for the terminal and the report: columns are functions of a row."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from kofn.experiments.statistics import Spread
from kofn.report.table import PlainTable

T = TypeVar("T")

Columns = Mapping[str, Callable[[T], str]]
"""By heading, the function that returns a row's cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Headings and cells; rows in `failed` are red."""

    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    title: str | None = None
    failed: frozenset[int] = frozenset()

    @classmethod
    def of(cls, columns: Columns[T], rows: Iterable[T], title: str | None = None) -> Self:
        return cls(
            headings=list(columns), cells=[[cell(row) for cell in columns.values()] for row in rows], title=title
        )

    def __rich__(self) -> PlainTable:
        return PlainTable(self.headings, self.cells, title=self.title, failed=self.failed)


def shown(value: float | None, form: str = "{:.2f}", *, never: str = "never") -> str:
    """Return a number as text; "-" if it is unknown, `never` if it is infinite."""
    if value is None or math.isnan(value):
        return "-"
    return never if math.isinf(value) else form.format(value)


def seconds(value: float | None) -> str:
    """Return a time to the target as text."""
    return shown(value, "{:.1f} s")


def milliseconds(value_s: float | None, *, never: str = "-") -> str:
    return shown(None if value_s is None else 1e3 * value_s, "{:.1f} ms", never=never)


def count(value: float | None, *, never: str = "-") -> str:
    return shown(value, "{:,.0f}", never=never)


def middle(spread: Spread | None) -> float | None:
    """Return the median, if there is one."""
    return None if spread is None else spread.median


def span(spread: Spread, cell: Callable[[float], str]) -> str:
    return f"{cell(spread.low)} .. {cell(spread.high)}"
