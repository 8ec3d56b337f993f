"""A process ends when two threads change a ledger at once, before the ledger is wrong."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CHANGED_BY = """
import sys, threading, time
import numpy as np
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.compression.ledger_storage import LedgerStorage
from tests.host.lab import add, ledger_of

BLOCKS = 1024
ledger = ledger_of(LedgerStorage.in_memory(blocks=BLOCKS, lanes=4096), FixedPoint(workers=2))
gradient = np.ones(BLOCKS * 4096, np.float32)
threads, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])

def change():
    while time.monotonic() < end:
        add(ledger, gradient, 1)

started = [threading.Thread(target=change) for _ in range(threads)]
[thread.start() for thread in started]
[thread.join() for thread in started]
"""


def changed_by(threads: int, seconds: float) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", CHANGED_BY, str(threads), str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_two_threads_in_a_ledger_end_the_process() -> None:
    assert changed_by(1, 0.1).returncode == 0
    found = changed_by(2, 60)  # it ends as soon as an addition begins within another one
    assert found.returncode == -signal.SIGABRT
    assert found.stderr.startswith("two threads change a ledger at once: its books would not balance\n")
