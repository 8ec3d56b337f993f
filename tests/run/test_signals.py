"""A signal that ends a run is named, and complete results are kept."""

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kofn.run.errors import InterruptedRun
from kofn.run.network import NetworkClient
from kofn.run.signals import _LOOPS, NAMES, cancel_on_signal, deferred, ignored, interruptible
from kofn.run.terminal import watched

BOOT = """
import json, pathlib, sys, time
print(json.dumps({"event": "ready", "driver": "netns", "hosts": {}, "switches": []}), flush=True)
sys.stdin.readline()
folder = pathlib.Path(__file__).parent
while not (folder / "cancelled").exists():
    time.sleep(0.01)
time.sleep(0.3)
(folder / "removed").touch()
print(json.dumps({"event": "stopped"}), flush=True)
"""
"""A boot.py whose clean-up takes a while after its caller is cancelled."""


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGINT, r"SIGINT \(Ctrl-C\)"), (signal.SIGTERM, r"SIGTERM \(kofn stop sends it\)")],
)
def test_signal_is_named(number: signal.Signals, words: str) -> None:
    with pytest.raises(InterruptedRun, match=f"stopped by {words}"), interruptible():
        os.kill(os.getpid(), number)
        time.sleep(1)


def test_complete_results_are_compared_in_spite_of_a_signal() -> None:
    with interruptible():
        with ignored():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(InterruptedRun):
            os.kill(os.getpid(), signal.SIGINT)


def test_signal_between_two_parts_of_a_command_ends_it_after_the_first() -> None:
    done = list[str]()
    with pytest.raises(InterruptedRun, match="SIGINT"), interruptible():
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("first")
        done.append("second")
    assert done == ["first"]


@pytest.mark.parametrize("shield", [ignored, deferred])
def test_closed_terminal_redirects_the_output_at_once(
    shield: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list[str]()
    monkeypatch.setattr("kofn.run.signals.terminal.leave", lambda: left.append("terminal"))
    monkeypatch.setattr("kofn.run.signals.SIGNALS", list(NAMES))  # under nohup SIGHUP is not among them
    with contextlib.suppress(InterruptedRun), interruptible(list(NAMES)), shield():
        signal.raise_signal(signal.SIGHUP)
        assert left == ["terminal"]


def test_signal_passed_on_while_the_loop_closes_is_ignored() -> None:
    """The sender has looked up the thread's loop just before."""
    listeners: list[Callable[[int], object]] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        cancel_on_signal(task)
        listeners.append(_LOOPS[threading.current_thread()])

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    thread.join()
    listeners[0](signal.SIGINT)


def test_process_may_be_forked_while_its_terminal_is_watched() -> None:
    master, slave = pty.openpty()
    code = (
        "import signal, threading; from kofn_common.forked import alone; from kofn.run.terminal import watched\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # the tests may run under nohup, which has it ignored
        "with watched(): print(threading.active_count(), alone())"
    )
    try:
        ended = subprocess.run([sys.executable, "-c", code], stdin=slave, capture_output=True, check=True)
    finally:
        os.close(master)
        os.close(slave)
    assert ended.stdout == b"2 True\n"


@pytest.mark.parametrize("close", [True, False])
def test_closed_terminal_is_a_hang_up(monkeypatch: pytest.MonkeyPatch, close: bool) -> None:
    master, slave = pty.openpty()
    hangups: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: hangups.append(number))
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor == 0)
    monkeypatch.setattr(os, "dup", lambda descriptor: slave)
    monkeypatch.setattr("kofn.run.terminal.PERIOD_S", 0.02)
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


def test_signal_does_not_interrupt_the_removal_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = tmp_path / "boot.py"
    boot.write_text(BOOT)
    monkeypatch.setattr("kofn.run.network.BOOT", boot)

    async def run() -> None:
        network = await NetworkClient.start(tmp_path, driver="auto", management="", log=tmp_path / "log")
        task = asyncio.create_task(network.stop())
        await asyncio.sleep(0.05)
        task.cancel()
        (tmp_path / "cancelled").touch()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (tmp_path / "removed").exists()

    asyncio.run(run())
