"""A core is read while the engine's thread, which needs no interpreter, changes it."""

import ctypes
import threading
import time

from kofn_host.protocol.block_layout import BlockLayout
from tests.host.protocol.watched import Watched

BLOCKS = 20_000


def test_open_blocks_are_read_while_they_close() -> None:
    layout = BlockLayout(blocks=BLOCKS, words=1, widest=32)
    protocol = Watched(job=1, rank=0, layout=layout, slots=64, window=32, rto_s=0.05)
    protocol.begin(1, 0.0)
    is_open, done = protocol._open.ctypes.data, threading.Event()

    def close_and_open() -> None:
        while not done.is_set():
            ctypes.memset(is_open, 0, BLOCKS)
            ctypes.memset(is_open, 1, BLOCKS)

    engine = threading.Thread(target=close_and_open)
    engine.start()
    try:
        most = asked = 0
        deadline_s = time.monotonic() + 20
        while (asked < 2000 or most < BLOCKS) and time.monotonic() < deadline_s:
            most, asked = max(most, len(protocol.missing)), asked + 1
    finally:
        done.set()
        engine.join()
    assert most == BLOCKS
