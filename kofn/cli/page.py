"""`kofn watch --web`: a run on a page, live or replayed."""

import contextlib
import sys
from pathlib import Path

import click

from kofn.run.state import running
from kofn_common.config.errors import ConfigError, KofnError

EXIT_REFUSED = 2


def watch_page(folder: Path | None, port: int) -> None:
    """Serve the page of a run until Ctrl-C; end with a line if there is no run, or the port is taken."""
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _serve(folder or _going_on(), port)
    except KofnError as error:
        click.echo(f"kofn watch: {error}", err=True)
        sys.exit(EXIT_REFUSED)


def _going_on() -> Path:
    run = running()
    if run is None:
        raise ConfigError("no run is going on: kofn watch --web FOLDER shows a finished run, runs/latest for example")
    return Path(run.folder)


def _serve(folder: Path, port: int) -> None:
    from kofn.web.reader import RunReader  # noqa: PLC0415  # needs kofn[web]
    from kofn.web.server import PageServer  # noqa: PLC0415  # likewise

    def over() -> bool:
        run = running()
        return run is None or Path(run.folder) != folder.resolve()

    with PageServer(RunReader(folder, over=over), port=port) as server:
        click.echo(f"page: {server.url}  (Ctrl-C ends it)")
        server.wait()
