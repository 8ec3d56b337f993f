"""Signals and terminals: what ends a run says so, and what is complete is not thrown away."""

import os
import pty
import signal
import time

import pytest

from run.errors import InterruptedRun
from run.signals import deferred, interruptible
from run.terminal import watched


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGINT, r"SIGINT \(Ctrl-C\)"), (signal.SIGTERM, r"SIGTERM \(kofn stop sends it\)")],
)
def test_a_signal_is_named(number: signal.Signals, words: str) -> None:
    with pytest.raises(InterruptedRun, match=f"stopped by {words}"), interruptible():
        os.kill(os.getpid(), number)
        time.sleep(1)


def test_complete_results_are_compared_in_spite_of_a_signal() -> None:
    with interruptible():
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(InterruptedRun):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("close", [True, False])
def test_a_terminal_that_is_closed_is_a_hang_up(monkeypatch: pytest.MonkeyPatch, close: bool) -> None:
    master, slave = pty.openpty()
    hangups: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: hangups.append(number))
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor == 0)
    monkeypatch.setattr(os, "dup", lambda descriptor: slave)
    monkeypatch.setattr("run.terminal.PERIOD_S", 0.02)
    try:
        with watched():
            os.write(master, b"typed\n")
            if close:
                os.close(master)
            deadline = time.monotonic() + (5.0 if close else 0.2)
            while not hangups and time.monotonic() < deadline:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert hangups == ([signal.SIGHUP] if close else [])
    if not close:
        os.close(master)
