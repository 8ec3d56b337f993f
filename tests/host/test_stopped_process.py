"""Time in which this process did not run is no silence of the others."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kofn_common.running_clock import RunningClock
from kofn_host.agent.iteration_wait import IterationWait
from kofn_host.collectives.coordinator import Coordinator
from kofn_host.compression.pieces import Pieces
from kofn_host.errors import AgentError

STOPPED_S = 75.0
LIMIT_S = 0.2


class Query:
    def describe(self, workers: int) -> str:
        return f"none of {workers} workers"


def waiting() -> IterationWait:
    protocol: Any = SimpleNamespace(share=0.0, missing=(1,), iteration=3, query=Query(), regrouping=False)
    return IterationWait(protocol, lambda: None, workers=2, give_up_s=LIMIT_S)


def pieces() -> Pieces:
    return Pieces(np.zeros(4, np.float32), 2)


WAITS = {
    "iteration": lambda: waiting().wait(),
    "pieces": lambda: waiting().wait_for_pieces(pieces()),
}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("stopped_s", [0.0, STOPPED_S])
def test_wait_outlives_a_stop_of_this_process_and_ends_by_silence(name: str, stopped_s: float) -> None:
    async def course() -> None:
        loop, stood = asyncio.get_running_loop(), [0.0]
        real = loop.time
        loop.time = lambda: real() + stood[0]  # type: ignore[method-assign]
        wait = asyncio.create_task(WAITS[name]())
        await asyncio.sleep(0)
        stood[0] = stopped_s
        for _ in range(3):  # the stopped process continues, and its timers fire
            await asyncio.sleep(0)
        assert not wait.done()
        with pytest.raises(AgentError):
            await wait

    asyncio.run(course())


def test_coordinator_blames_no_call_after_a_stop() -> None:
    now = [0.0]
    coordinator = Coordinator([SimpleNamespace(put=lambda message: None)] * 2, 60.0)  # type: ignore[list-item]
    coordinator._clock = RunningClock(1.0, lambda: now[0])
    coordinator._matching.post(0, (0,), "all_reduce", coordinator._clock())  # type: ignore[arg-type]
    now[0] += STOPPED_S
    coordinator._check_deadlines(coordinator._clock())
    assert coordinator._silence is None
