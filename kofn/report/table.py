"""Tables for people. Without a terminal a table has its full width; on a narrow terminal it is continued below."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

UNLIMITED = 100_000
"""The width, in columns, of a console without a terminal: no line is cut or folded."""

GAP = 2
"""Columns between two cells."""

TEXT = 30
"""Smallest width of a column of text, which may be folded."""


def plain_console(**options: Any) -> Console:
    """Return a console that prints texts as they are: without markup, emoji codes and colours by content."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def make_console(*, stderr: bool = False, quiet: bool = False, file: IO[str] | None = None) -> Console:
    """Return a console with the terminal's width; in a pipe or a file, lines may have any length."""
    made = plain_console(stderr=stderr, quiet=quiet, file=file)
    if not made.is_terminal:
        made.width = UNLIMITED
    return made


@dataclass(frozen=True, slots=True)
class PlainTable:
    """Headings and rows without lines: names in the first column, numbers right-aligned in the others.

    A table that is wider than the terminal is printed in parts, each with the first column; a cell that is still too
    wide is folded. `texts`: headings of columns of words, left-aligned. `failed`: numbers of the rows that are red.
    `cut`: print one part, and end texts that do not fit with an ellipsis.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    _: KW_ONLY
    title: str | None = None
    texts: Collection[str] = ()
    failed: Collection[int] = ()
    cut: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(cell_len, column)) for column in zip(self.headings, *self.rows, strict=True)]
        if self.cut:
            yield self._part(range(len(widths)), self._cut(widths, options.max_width), title=self.title)
            return
        for number, columns in enumerate(self._parts(widths, options.max_width)):
            yield self._part(columns, {}, title=self.title if number == 0 else None)

    def _cut(self, widths: Sequence[int], width: int) -> dict[int, int]:
        """Return the width of each column of words: the widest text, or an equal share of the remaining space."""
        texts = sorted(
            (column for column, name in enumerate(self.headings) if name in self.texts), key=widths.__getitem__
        )
        left = width - GAP * (len(widths) - 1) - sum(own for column, own in enumerate(widths) if column not in texts)
        found = {}
        for place, column in enumerate(texts):
            found[column] = max(1, min(widths[column], left // (len(texts) - place)))
            left -= found[column]
        return found

    def _parts(self, widths: Sequence[int], width: int) -> list[list[int]]:
        """Return the columns of each part."""
        parts, used = [[0]], widths[0]
        for column, whole in enumerate(widths[1:], 1):
            own = min(whole, TEXT) if self.headings[column] in self.texts else whole
            if len(parts[-1]) > 1 and used + GAP + own > width:
                parts, used = [*parts, [0]], widths[0]
            parts[-1].append(column)
            used += GAP + own
        return parts

    def _part(self, columns: Iterable[int], widths: Mapping[int, int], *, title: str | None) -> Table:
        made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
        for column in columns:
            left = column == 0 or self.headings[column] in self.texts
            made.add_column(
                Text(self.headings[column]),
                justify="left" if left else "right",
                overflow="ellipsis" if column in widths else "fold",
                no_wrap=not column or column in widths,
                width=widths.get(column),
            )
        for number, row in enumerate(self.rows):
            made.add_row(*(Text(row[column]) for column in columns), style="red" if number in self.failed else None)
        return made
