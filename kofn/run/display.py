"""Shows the views of a trial: on a terminal a table for each job, elsewhere one plain line a second."""

import textwrap
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from kofn.run.live import TrialView
from kofn.run.live_table import LiveTable
from kofn_common.extras import remedy

PLAIN_INTERVAL_S = 1.0
TABLE_INTERVAL_S = 0.2


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print lines without markup and colours by content; on a terminal they break between words, never in a path."""
    if console.is_terminal:
        fill = partial(textwrap.fill, width=console.width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(map(fill, text.split("\n")))
    console.print(text, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def report_line(write: Callable[[], Path]) -> str:
    """Return a line with the place of the report that `write` makes, or with the package that is missing for it."""
    try:
        return f"report: {write()}"
    except ModuleNotFoundError as error:
        return f"no report: {remedy(error)}"


class Display:
    """Shows the view of every job: in place on a terminal, as lines elsewhere, or (quiet) only events."""

    def __init__(self, console: Console, views: Sequence[TrialView], *, quiet: bool) -> None:
        """Use as a context manager."""
        self._console, self._views, self._quiet = console, views, quiet
        self._tables = [LiveTable(view=view, sharing=len(views)) for view in views]
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None
        self._shown_s = 0.0
        self._news = [-1.0] * len(views)

    def __enter__(self) -> "Display":
        if self._live is not None and not self._quiet:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Draw the last state and release the terminal."""
        self.show(last=True)
        if self._live is not None and not self._quiet:
            self._live.stop()
        for view in self._views:
            view.close()

    def show(self, *, last: bool = False) -> None:
        """Draw the views: news at once, the rest no more often than can be read."""
        for line in [line for view in self._views for line in view.news()]:
            say(self._console, line)  # appears above a live table
        if self._quiet:
            return
        for line in [line for view in self._views for line in view.printed()]:
            say(self._console, line)
        interval_s = PLAIN_INTERVAL_S if self._live is None else TABLE_INTERVAL_S
        if last or time.monotonic() - self._shown_s >= interval_s:
            self._shown_s = time.monotonic()
            self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(Group(*self._tables), refresh=True)
            return
        for index, view in enumerate(self._views):
            if view.last_news != self._news[index]:
                self._news[index] = view.last_news
                say(self._console, view.line())
