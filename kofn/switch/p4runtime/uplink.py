"""What the data plane sends up, digests and packets, brought from the engine's blocking calls into the asyncio loop."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from kofn.switch.errors import SwitchError

LOG = logging.getLogger(__name__)
TAKE_TIMEOUT_S = 0.2  # how long closing waits for the thread at most
T = TypeVar("T")


class Uplink:
    """A thread that waits for one of the engine's take methods, and a handler that is called in the loop."""

    def __init__(self, what: str, take: Callable[[float], list[T]], handle: Callable[[list[T]], None]) -> None:
        """Start; make it in the running loop.  `take` waits up to the given seconds for something to return."""
        self._what = what
        self._closing = threading.Event()
        loop = asyncio.get_running_loop()

        def pump() -> None:
            while not self._closing.is_set():
                items = take(TAKE_TIMEOUT_S)
                if items and not self._closing.is_set():
                    loop.call_soon_threadsafe(handle, items)

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
