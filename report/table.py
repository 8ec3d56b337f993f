"""Tables for the terminal."""

from collections.abc import Iterable, Sequence

from rich.table import Table


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> Table:
    """Without lines: names in the first column, figures at the right of the others."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for number, name in enumerate(headings):
        made.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made
