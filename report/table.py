"""Tables for the terminal."""

from collections.abc import Collection, Iterable, Sequence

from rich.table import Table


def plain_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, texts: Collection[str] = ()
) -> Table:
    """Without lines: names in the first column, figures at the right of the others; `texts`: columns that may wrap."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for number, name in enumerate(headings):
        text = name in texts
        made.add_column(name, justify="right" if number and not text else "left", no_wrap=not text)
    for row in rows:
        made.add_row(*row)
    return made
