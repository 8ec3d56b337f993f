"""Signals and terminals: what ends a run says so, and what is complete is not thrown away."""

import asyncio
import os
import pty
import signal
import time
from typing import cast

import pytest

from run.errors import InterruptedRun
from run.network import Network
from run.runner import remove
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


def test_a_signal_does_not_interrupt_the_removal_of_the_network() -> None:
    class SlowNetwork:
        removed = False

        async def stop(self) -> None:
            await asyncio.sleep(0.05)
            self.removed = True

    async def run() -> None:
        network = SlowNetwork()
        task = asyncio.create_task(remove(cast(Network, network)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert network.removed

    asyncio.run(run())
