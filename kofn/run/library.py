"""A run for a script or a notebook: configurations become files, a callback gets the lines, Ctrl-C ends the run."""

import contextlib
import io
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from kofn.report.table import plain_console
from kofn.run.errors import InterruptedRun
from kofn.run.plan import DEFAULT_CONFIG, RunPlan, make_plan
from kofn.run.signals import ignored, interruptible, pass_on, stopped_by
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import ConfigError
from kofn_common.config.given import Given, load, path_of

Progress = bool | Callable[[str], object]
"""The destination of a run's lines. True: a notebook's cell shows the newest line, elsewhere all lines go to stderr.
False: no line is shown. A function is called with each line."""

UNLIMITED = 10_000
"""The width of the console in columns: no printed line breaks."""

PASSED_ON_S = 0.2
"""The interval between requests to a thread to end. Requests are repeated because the thread's loop may not run yet."""


@contextlib.contextmanager
def planned(
    configs: Sequence[Given],
    sections: Mapping[str, Any],
    *,
    trials: Sequence[str] = (),
    out: Path | str | None,
    **choices: Any,
) -> Iterator[RunPlan]:
    """Yield the run's plan; without a configuration, yield the default experiment's plan. Raise ConfigError for a
    fault.

    Configurations that are no files become temporary files until the end of the block.
    """
    if isinstance(trials, str) or not all(isinstance(trial, str) for trial in trials):
        raise ConfigError(f"trials must be a list of objectives, got {trials!r}: ['progress', 'all'] for example")
    with tempfile.TemporaryDirectory(prefix="kofn-") as folder:
        given = configs or [DEFAULT_CONFIG]
        own = [Path(folder) / f"{number}.toml" for number, _ in enumerate(given)]
        files = [_file(config, sections, path) for config, path in zip(given, own, strict=True)]
        try:
            plan = make_plan(*files, out=None if out is None else Path(out), objectives=tuple(trials), **choices)
        except ConfigError as error:
            message = str(error)
            for path in own:
                message = message.removeprefix(f"{path}: ")  # the user does not know that file
            raise ConfigError(message) from None
        if plan.shared.run.seeds > 1:
            raise ConfigError(f"run.seeds must be 1 here, got {plan.shared.run.seeds}: call once for each run.seed")
        yield plan


def _file(given: Given, sections: Mapping[str, Any], path: Path) -> Path:
    """Return the file with the configuration. If the configuration is no file, or `sections` change it, write it to
    `path`."""
    own = path_of(given)
    if own is not None and not sections:
        return own
    path.write_text(to_toml(load(given, sections)))
    return path


def in_thread(work: Callable[[Console], object], progress: Progress) -> None:
    """Do the work in a separate thread: a notebook's thread runs an event loop already.

    The caller's thread takes the printed lines, and handles signals. An exception in the caller's thread, such as
    KeyboardInterrupt, is passed on to the work, and raised again when the work has ended in order.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work(line_console(lines.put))
        except BaseException as error:  # raised in the caller's thread
            errors.append(error)
        finally:
            lines.put(None)

    thread = threading.Thread(target=run, name="kofn.run")
    with interruptible([signal.SIGTERM]), listener(progress) as tell:
        thread.start()
        try:
            while (line := lines.get()) is not None:
                tell(line)
        except BaseException as error:
            told_to_end = isinstance(error, InterruptedRun)
            with ignored():
                while thread.is_alive():
                    pass_on(signal.SIGTERM if told_to_end else signal.SIGINT, thread)
                    thread.join(PASSED_ON_S)
            if errors and told_to_end:
                raise errors[0] from None
            for reason in errors:
                error.add_note(str(reason))
            raise
    thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Let Ctrl-C and `kofn stop` end the body in the same way as they end a command. Then raise KeyboardInterrupt for
    Ctrl-C."""
    try:
        with interruptible([signal.SIGINT, signal.SIGTERM]):
            yield
    except InterruptedRun as error:
        if str(error) != str(stopped_by(signal.SIGINT)):
            raise
        raise KeyboardInterrupt(str(error)) from None


@contextlib.contextmanager
def listener(progress: Progress) -> Iterator[Callable[[str], object]]:
    """Yield a function that takes the lines of a run."""
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda line: None
    else:
        yield _notebook() or (lambda line: print(line, file=sys.stderr))


def line_console(tell: Callable[[str], object]) -> Console:
    """Return a console that passes each printed line to `tell`."""
    return plain_console(file=_Lines(tell), width=UNLIMITED, force_terminal=False, force_jupyter=False)


class _Lines(io.StringIO):
    """A file that passes on its lines."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__()
        self._tell, self._rest = tell, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._tell(line.rstrip())
        return len(text)


def _notebook() -> Callable[[str], object] | None:
    """Return a function that shows a line in place of the last one; None outside a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # noqa: PLC0415  # the kernel has it

    shown: Any = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
    return lambda line: shown.update({"text/plain": line}, raw=True)
