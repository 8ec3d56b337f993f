"""An uplink buffers nothing: items wait in the engine, whose room is bounded, until a slow handler has returned."""

import asyncio
import itertools
import threading

from kofn_switch.p4runtime.uplink import Uplink, in_loop
from tests.waiting import PATIENCE_S


class Source:
    """A source that always has an item, the number of the call."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.asked_again = threading.Event()

    def take(self, timeout_s: float) -> list[int]:
        number = next(self._numbers)
        if number:
            self.asked_again.set()
        return [number]


async def until(handled: list[list[int]], count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(handled) < count:
            await asyncio.sleep(0)


def test_no_item_is_taken_while_the_loop_is_busy() -> None:
    async def scenario() -> list[list[int]]:
        source, handled = Source(), list[list[int]]()
        uplink = Uplink("numbers", source.take, in_loop(handled.append))
        assert not source.asked_again.wait(0.3), "the loop is blocked here, so the source must not be asked"
        await until(handled, 3)
        await uplink.close()
        return handled

    handled = asyncio.run(scenario())
    assert handled == [[number] for number in range(len(handled))]


def test_handler_that_fails_once_is_called_again() -> None:
    async def scenario() -> list[list[int]]:
        handled: list[list[int]] = []

        def handle(items: list[int]) -> None:
            handled.append(items)
            if len(handled) == 1:
                raise ValueError("the first one fails")

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        uplink = Uplink("numbers", Source().take, in_loop(handle))
        await until(handled, 2)
        await uplink.close()
        return handled

    assert asyncio.run(scenario())[:2] == [[0], [1]]
