"""What ends a run from outside, and when it may.

Outside of the event loop a signal raises InterruptedRun, inside it cancels the task; while results are
being compared it waits.  Only the main thread hears of signals, and may pass one on to a thread with a loop.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
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

_LOOPS: dict[threading.Thread, Callable[[int], object]] = {}
"""What takes a signal for the task of a thread's loop."""


@contextlib.contextmanager
def interruptible(signals: Sequence[int] = SIGNALS) -> Iterator[None]:
    """One of the signals raises InterruptedRun wherever the program is."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        _leave_terminal(number)
        raise stopped_by(number)

    with _handled(interrupt, signals):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Nothing is interrupted: what goes on takes a second and is worth more than the second."""
    with _handled(lambda number, frame: _leave_terminal(number), SIGNALS):
        yield


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """SIGINT or SIGTERM end the body, and nothing else; a closed terminal does not."""

    def leave(number: int, frame: FrameType | None) -> None:
        _leave_terminal(number)
        if number != signal.SIGHUP:
            raise stopped_by(number)

    with contextlib.suppress(InterruptedRun), _handled(leave, SIGNALS):
        yield


def cancel_on_signal(task: asyncio.Task[None]) -> list[int]:
    """Let the first signal cancel a task of the running loop, later ones do nothing; the list fills with them.

    In another thread than the main one, signals are those that somebody passes on.
    """
    received: list[int] = []

    def cancel_once(number: int) -> None:
        _leave_terminal(number)
        received.append(number)
        if len(received) == 1:
            task.cancel()

    loop, thread = asyncio.get_running_loop(), threading.current_thread()

    def cancel_soon(number: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed since: there is nothing to cancel
            loop.call_soon_threadsafe(cancel_once, number)

    if thread is not threading.main_thread():
        _LOOPS[thread] = cancel_soon
        task.add_done_callback(lambda _: _LOOPS.pop(thread))
        return received
    for number in SIGNALS:
        loop.add_signal_handler(number, cancel_once, number)
    return received


def pass_on(number: int, thread: threading.Thread) -> None:
    """A signal to the task of a thread's loop; nothing where it has none."""
    if (listener := _LOOPS.get(thread)) is not None:
        listener(number)


def stopped_by(number: int) -> InterruptedRun:
    """The error that says which signal it was."""
    return InterruptedRun(f"stopped by {NAMES[signal.Signals(number)]}")


@contextlib.contextmanager
def _handled(handler: Handler, signals: Sequence[int]) -> Iterator[None]:
    """Nothing changes in another thread than the main one."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in signals if main}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _leave_terminal(number: int) -> None:
    if number == signal.SIGHUP:
        terminal.leave()
