"""Tables of text for the terminal and the report: columns are functions of a row."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from kofn.report.frames import UNITS
from kofn.report.interval import Interval
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
    texts: Sequence[str] = ()
    """Headings of columns of words."""

    @classmethod
    def of(cls, columns: Columns[T], rows: Iterable[T], title: str | None = None) -> Self:
        return cls(
            headings=list(columns), cells=[[cell(row) for cell in columns.values()] for row in rows], title=title
        )

    def __rich__(self) -> PlainTable:
        return PlainTable(self.headings, self.cells, title=self.title, failed=self.failed, texts=self.texts)


def shown(value: float | None, form: str = "{:.2f}", *, never: str = "never") -> str:
    """Return a number as text; "-" if it is unknown, `never` if it is infinite."""
    if value is None or math.isnan(value):
        return "-"
    return never if math.isinf(value) else form.format(value)


def seconds(value: float | None) -> str:
    """Return a time to the target as text."""
    return shown(value, "{:.1f} s")


def milliseconds(value_s: float | None) -> str:
    return shown(None if value_s is None else 1e3 * value_s, "{:.1f} ms", never="-")


def count(value: float | None, *, never: str = "-") -> str:
    return shown(value, "{:,.0f}", never=never)


def column_text(name: str, found: Interval | None) -> str:
    """Return a mean with its interval and unit: "1.20 s (1.10 to 1.31)"; "-" without a value."""
    if found is None:
        return "-"
    scale, form, unit = _scaled(name, abs(found.mean))
    mean = form.format(scale * found.mean) + unit
    if found.low is None or found.high is None:
        return mean
    return f"{mean} ({form.format(scale * found.low)} to {form.format(scale * found.high)})"


def ratio_text(found: Interval | None) -> str:
    return "-" if found is None else found.text("{:.2f}")


def _scaled(name: str, size: float) -> tuple[float, str, str]:
    """Return factor, format and unit for a column's values of about this size."""
    words = name.split("_")
    if words[-1] == "s" and words[-2:-1] != ["per"]:
        return (1.0, "{:.2f}", " s") if size >= 1 else (1e3, "{:.2f}", " ms")
    if "bytes" in words:
        return (1e-6, "{:.2f}", " MB") if size >= 1e5 else (1e-3, "{:.2f}", " kB")
    unit = f" {UNITS[words[-1]]}" if words[-1] in UNITS and words[-1] != "s" else ""
    return (1.0, "{:,.0f}" if size >= 100 else "{:.3g}", unit)
