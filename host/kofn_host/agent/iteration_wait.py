"""Waiting for a gradient's pieces and for an iteration's end, with warnings and a timeout."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from kofn_common.running_clock import RunningClock
from kofn_host.compression.pieces import Pieces
from kofn_host.errors import AgentError
from kofn_host.protocol.core import Protocol

log = logging.getLogger(__name__)

EXPLAIN_AFTER_S = 2.0
GIVE_UP_AFTER_S = 60.0


class IterationWait:
    """Waits for the iterations of `protocol`, one after another; `ask` asks the switch which workers are missing.

    `give_up_s`: the longest time without a closed block, or without a new piece, while this process runs.
    """

    def __init__(
        self,
        protocol: Protocol,
        ask: Callable[[], object],
        *,
        workers: int,
        give_up_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        self._protocol, self._ask, self._give_up_s = protocol, ask, give_up_s
        self._workers = workers
        self._step_s = min(EXPLAIN_AFTER_S, give_up_s / 4)
        self._error: Exception | None = None
        self._ended, self._put = asyncio.Event(), asyncio.Event()

    def ended(self) -> None:
        """Wake the waiting call: an iteration's results are complete, or a replica has replaced them."""
        self._ended.set()

    def fail(self, error: Exception) -> None:
        """Raise this error in the waiting call."""
        self._error = error
        self._ended.set()
        self._put.set()

    def piece_put(self) -> None:
        """Note that another piece of the gradient was put."""
        self._put.set()

    async def wait_for_pieces(self, pieces: Pieces) -> None:
        """Wait until every piece was put; AgentError after `give_up_s` without a new piece."""
        clock = self._clock()
        put_s, since_s = pieces.put_s, clock()
        while not pieces.whole:
            self._put.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._step_s):
                    await self._put.wait()
            if self._error is not None:
                raise self._error
            now_s = clock()
            if put_s != pieces.put_s:
                put_s, since_s = pieces.put_s, now_s
            elif now_s - since_s >= self._give_up_s:
                raise AgentError(pieces.awaited(self._give_up_s))

    async def wait(self) -> None:
        """Wait for the iteration's end; AgentError after `give_up_s` without a closed block."""
        clock = self._clock()
        share, since_s = self._protocol.share, clock()
        self._ended.clear()
        while self._error is None and not self._ended.is_set():
            try:
                async with asyncio.timeout(self._step_s):
                    await self._ended.wait()
            except TimeoutError:
                now_s = clock()
                if share != self._protocol.share:
                    share, since_s = self._protocol.share, now_s
                else:
                    self._explain(now_s - since_s)
        if self._error is not None:
            raise self._error

    def _clock(self) -> RunningClock:
        return RunningClock(2 * self._step_s, asyncio.get_running_loop().time)

    def _explain(self, waited_s: float) -> None:
        """Log the missing blocks and the switch's answer; AgentError after `give_up_s`."""
        protocol = self._protocol
        missing = protocol.missing
        text = f"iteration {protocol.iteration}: no result for blocks {missing[:8]} for {waited_s:.0f} s"
        answer = protocol.query.describe(self._workers)
        if waited_s >= self._give_up_s:
            raise AgentError(f"{text}; gave up: {answer}")
        why = "the job regroups" if protocol.regrouping else f"they are requested repeatedly: {answer}"
        log.warning("%s; %s", text, why)
        self._ask()
