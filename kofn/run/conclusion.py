"""The end of a run, for any reason: its trials' results are compared, written and shown."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import click
from rich.console import Console

from kofn.report.brief import brief_tables, headlines
from kofn.report.summarise import summarise_run
from kofn.report.summary import RunSummary
from kofn.report.table import make_console
from kofn.run.display import report_line, say
from kofn.run.errors import RunError
from kofn.run.signals import ignored, impatient
from kofn_common.config.errors import KofnError
from kofn_common.config.plugins import in_words
from kofn_common.config.schema import Config
from kofn_common.json_text import json_text
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import merge

FULL_BYTES = 100_000
"""A run cannot be concluded if its disk has fewer free bytes."""

AtEarlyEnd = Callable[[RunFolder], None]
"""A function that is called with the folder of a run that ended early, after the run's processes have ended."""


@contextlib.contextmanager
def noted_end(folder: RunFolder, at_early_end: AtEarlyEnd | None = None) -> Iterator[None]:
    """Write an exception that ends the run into the run's record, then call `at_early_end` with the folder.

    Raise RunError instead if the disk is too full for the record.
    """
    try:
        yield
    except Exception as error:
        if shutil.disk_usage(folder.path).free < FULL_BYTES:
            raise RunError(
                f"the disk of {folder.path} is full: free some of it, and kofn report {folder.path} shows what there is"
            ) from error
        with ignored():
            first, _, _ = (str(error) if isinstance(error, KofnError) else in_words(error)).partition("\n")
            folder.update_record(ended=first.rstrip(":"))
        if at_early_end is not None:
            with impatient():
                at_early_end(folder)
        raise


def conclude_early(console: Console, *, as_json: bool, errors: Console | None = None) -> AtEarlyEnd:
    """Return a function that concludes the results so far. The function prints its errors, because its caller raises
    the reason of the early end."""

    def conclude_rest(folder: RunFolder) -> None:
        end = folder.record().early_end
        say(console, "the run ends early; summary and report of what there is (Ctrl-C: leave them to kofn report)")
        try:
            conclude(folder, folder.configs(), console, as_json=as_json, early_end=end, raised=True, errors=errors)
        except KofnError as error:
            say(console, f"no summary: {error}")

    return conclude_rest


def conclude(
    folder: RunFolder,
    configs: Sequence[Config],
    console: Console,
    *,
    as_json: bool,
    early_end: str = "",
    raised: bool = False,
    details: bool = False,
    errors: Console | None = None,
) -> int:
    """Merge the metrics, compare the trials, write the report; return the exit code.

    `details` shows the whole table. `early_end` is the reason for which some trials did not end. If `raised` is true,
    the caller raises an error with this reason, so the printed failures omit the reason. `errors` replaces stderr.
    """
    merge(folder, configs)
    summary = summarised(folder, configs, early_end)
    for job in summary.jobs:
        for sentence in headlines(job):
            say(console, sentence)
    for part in summary.parts() if details else brief_tables(summary):
        console.print(part)
    for note in summary.notes:
        say(console, note)
    say(console, report_line(lambda: _report().write_report(folder, configs, summary)))
    say_failures(summary.failures, early_end if raised else "", errors)
    if as_json:
        click.echo(json_text(summary.to_dict(), indent=2))
    return 1 if summary.failures else 0


def summarised(folder: RunFolder, configs: Sequence[Config], early_end: str = "") -> RunSummary:
    """Return every job's results, also written to summary.json."""
    summary = summarise_run(folder, configs, early_end)
    (folder.path / "summary.json").write_text(json_text(summary.to_dict(), indent=2) + "\n")
    return summary


def say_failures(failures: Sequence[str], early_end: str, errors: Console | None = None) -> None:
    """Print failures; if `early_end` is given, cut this reason from the end of each failure."""
    for failure in failures:
        shown = failure.removesuffix(f": {early_end}") if early_end else failure
        say(errors or make_console(stderr=True), f"kofn: {shown}", style="red")


def load_report() -> None:
    """Load the report's packages, if they are installed, during another wait."""
    with contextlib.suppress(ModuleNotFoundError):
        _report().load()


def _report() -> ModuleType:
    from kofn.report import page  # noqa: PLC0415  # matplotlib takes half a second, and may print a line

    return page
