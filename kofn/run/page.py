"""The live page of a run, served while the network is up."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

from rich.console import Console

from kofn.run.display import say

Watched = Callable[[], bool]
"""A function that returns whether the page has viewers now."""


@contextlib.contextmanager
def page(folder: Path, port: int | None, console: Console) -> Iterator[Watched]:
    """Serve the run in this folder on a page within the block, unless port is None. Raise ConfigError if the port is
    taken."""
    if port is None:
        yield lambda: False
        return
    from kofn.web.reader import RunReader  # noqa: PLC0415  # needs kofn[web]
    from kofn.web.server import PageServer  # noqa: PLC0415  # likewise

    ended = Event()
    reader = RunReader(folder, over=ended.is_set)
    with PageServer(reader, port=port) as server:
        say(console, f"page: {server.url}")
        try:
            yield lambda: reader.watchers > 0
        finally:
            ended.set()
