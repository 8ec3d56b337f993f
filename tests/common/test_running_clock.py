"""A timeout by the time in which this process runs."""

import asyncio

import pytest

from kofn_common import running_clock
from kofn_common.running_clock import running_timeout

LIMIT_S = 0.1


@pytest.mark.parametrize("stopped_s", [0.0, 75.0])
def test_timeout_counts_only_time_in_which_the_process_runs(stopped_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_clock, "TICK_S", LIMIT_S / 8)
    stood, over = [0.0], []

    async def waiting() -> None:
        async with running_timeout(LIMIT_S):
            await asyncio.Event().wait()

    async def course() -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + stood[0]  # type: ignore[method-assign]
        wait = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        stood[0] = stopped_s
        for _ in range(3):  # the stopped process continues, and its timers fire
            await asyncio.sleep(0)
        over.append(wait.done())
        with pytest.raises(TimeoutError):
            await wait

    asyncio.run(course())
    assert over == [False]
