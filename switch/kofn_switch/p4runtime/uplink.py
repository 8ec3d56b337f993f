"""Digests and packets of the data plane, brought from the engine's blocking calls into the asyncio loop."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from kofn_switch.errors import SwitchError

LOG = logging.getLogger(__name__)
TAKE_TIMEOUT_S = 0.2  # the most seconds that closing waits for the thread
T = TypeVar("T")


class Uplink:
    """A thread that waits for one of the engine's take methods and passes the result to a handler.

    The thread takes no further items until the handler has returned. Meanwhile items wait in the engine, which has
    bounded room and counts the items that it drops.
    """

    def __init__(self, what: str, take: Callable[[float], list[T]], handle: Callable[[list[T]], None]) -> None:
        """Start. `take` waits up to the given seconds for items; the thread calls `handle` with them."""
        self._what = what
        self._closing = threading.Event()

        def pump() -> None:
            while not self._closing.is_set():
                items = take(TAKE_TIMEOUT_S)
                if items:
                    handle(items)

        self._thread = threading.Thread(target=self._run, args=(pump,), name=f"kofn-{what}", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop and wait for the thread."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except SwitchError:
            LOG.exception("no %s from now on", self._what)


def in_loop(handle: Callable[[list[T]], None]) -> Callable[[list[T]], None]:
    """Return a function for other threads: it calls `handle` in the running loop and waits until it has returned."""
    loop = asyncio.get_running_loop()

    def call(items: list[T]) -> None:
        done = threading.Event()

        def carry_out() -> None:
            try:
                handle(items)
            finally:
                done.set()

        loop.call_soon_threadsafe(carry_out)
        done.wait()

    return call
