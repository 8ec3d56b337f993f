"""What ends a run from outside, and when it may.

Outside of the event loop a signal raises InterruptedRun, inside it cancels the task; while results are
being compared it waits.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from kofn.run import terminal
from kofn.run.errors import InterruptedRun

SIGNALS = [signal.SIGINT, signal.SIGTERM] + [signal.SIGHUP] * (not terminal.hangups_ignored())
"""`nohup kofn run` outlives its terminal."""

NAMES = {
    signal.SIGINT: "SIGINT (Ctrl-C)",
    signal.SIGTERM: "SIGTERM (kofn stop sends it)",
    signal.SIGHUP: "SIGHUP (its terminal was closed)",
}

Handler = Callable[[int, FrameType | None], None]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A signal raises InterruptedRun wherever the program is."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        _leave_terminal(number)
        raise stopped_by(number)

    with _handled(interrupt):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Nothing is interrupted: what goes on takes a second and is worth more than the second."""
    with _handled(lambda number, frame: _leave_terminal(number)):
        yield


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """SIGINT or SIGTERM end the body, and nothing else; a closed terminal does not."""

    def leave(number: int, frame: FrameType | None) -> None:
        _leave_terminal(number)
        if number != signal.SIGHUP:
            raise stopped_by(number)

    with contextlib.suppress(InterruptedRun), _handled(leave):
        yield


def cancel_on_signal(task: asyncio.Task[None]) -> list[int]:
    """Let the first signal cancel a task of the running loop, later ones do nothing; the list fills with them."""
    received: list[int] = []

    def cancel_once(number: int) -> None:
        _leave_terminal(number)
        received.append(number)
        if len(received) == 1:
            task.cancel()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, cancel_once, number)
    return received


def stopped_by(number: int) -> InterruptedRun:
    """The error that says which signal it was."""
    return InterruptedRun(f"stopped by {NAMES[signal.Signals(number)]}")


@contextlib.contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _leave_terminal(number: int) -> None:
    if number == signal.SIGHUP:
        terminal.leave()
