"""Signals that end a run, and the times at which they may end it.

A signal raises InterruptedRun outside of the event loop, and cancels the task inside the loop. While results are
compared, a signal has no effect, or its effect comes afterwards. Only the main thread receives signals; it may pass a
signal on to a thread with a loop.
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
"""The signals that end a run. Without SIGHUP, `nohup kofn run` outlives its terminal."""

NAMES = {
    signal.SIGINT: "SIGINT (Ctrl-C)",
    signal.SIGTERM: "SIGTERM (kofn stop sends it)",
    signal.SIGHUP: "SIGHUP (its terminal was closed)",
}

Handler = Callable[[int, FrameType | None], None]

_LOOPS: dict[threading.Thread, Callable[[int], object]] = {}
"""By thread: a function that passes a signal to the task of the thread's loop."""


@contextlib.contextmanager
def interruptible(signals: Sequence[int] = SIGNALS) -> Iterator[None]:
    """Have the signals raise InterruptedRun anywhere in the body."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        _leave_terminal(number)
        raise stopped_by(number)

    with _handled(interrupt, signals):
        yield


@contextlib.contextmanager
def ignored() -> Iterator[list[int]]:
    """Ignore signals in the body: it takes about a second, and what a signal would end is over afterwards. A closed
    terminal only redirects the output. Yield a list to which the number of every signal is appended."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        _leave_terminal(number)
        received.append(number)

    with _handled(note, SIGNALS):
        yield received


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Ignore signals in the body, as ignored() does; handle the first of them after the body."""
    with ignored() as received:
        yield
    if received:
        signal.raise_signal(received[0])


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Have SIGINT or SIGTERM end the body, without an error. A closed terminal does not end the body."""

    def leave(number: int, frame: FrameType | None) -> None:
        _leave_terminal(number)
        if number != signal.SIGHUP:
            raise stopped_by(number)

    with contextlib.suppress(InterruptedRun), _handled(leave, SIGNALS):
        yield


def cancel_on_signal(task: asyncio.Task[None]) -> list[int]:
    """Have the first signal cancel a task of the running loop, and ignore later signals. Return a list to which the
    number of every signal is appended.

    Outside of the main thread the signals are those that pass_on() brings.
    """
    received: list[int] = []

    def cancel_once(number: int) -> None:
        _leave_terminal(number)
        received.append(number)
        if len(received) == 1:
            task.cancel()

    loop, thread = asyncio.get_running_loop(), threading.current_thread()

    def cancel_soon(number: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no task to cancel
            loop.call_soon_threadsafe(cancel_once, number)

    if thread is not threading.main_thread():
        _LOOPS[thread] = cancel_soon
        task.add_done_callback(lambda _: _LOOPS.pop(thread))
        return received
    for number in SIGNALS:
        loop.add_signal_handler(number, cancel_once, number)
    return received


def pass_on(number: int, thread: threading.Thread) -> None:
    """Pass a signal on to the task of a thread's loop, if it has one."""
    if (listener := _LOOPS.get(thread)) is not None:
        listener(number)


def stopped_by(number: int) -> InterruptedRun:
    """Return the error with the signal's name."""
    return InterruptedRun(f"stopped by {NAMES[signal.Signals(number)]}")


@contextlib.contextmanager
def _handled(handler: Handler, signals: Sequence[int]) -> Iterator[None]:
    """Set handlers within the block; only in the main thread."""
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
