"""The way of an iteration's gradient to the protocol: Python or the engine's thread encodes the gradient.

Python encodes slice by slice.  If the encoder has a reduction for the engine, the engine encodes, sends, receives and
averages blocks without Python.  A gradient that is still being computed arrives in pieces, and the mean of each block
leaves when the block closes.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import repeat

from kofn_host.agent.gradient_stream import GradientStream, ignore_awaited
from kofn_host.agent.iteration_wait import IterationWait
from kofn_host.compression.aggregate import Sums
from kofn_host.compression.encoder import Encoder
from kofn_host.compression.pieces import Pieces
from kofn_host.engine.engine import EnginePort
from kofn_host.stopwatch import Times


class GradientFeed:
    """The gradients of one worker, one at a time; `more` is called on the event loop after a piece was put."""

    sums: Sums
    """The sums of the current iteration."""

    def __init__(self, protocol: EnginePort, encoder: Encoder, wait: IterationWait, more: Callable[[], object]) -> None:
        self._protocol, self._encoder, self._wait, self._more = protocol, encoder, wait, more
        self._stream: GradientStream | None = None  # while the current iteration's gradient is computed
        self.reduced = Times()
        """The parts of the engine's time for the latest gradient."""

    def slices(self, iteration: int) -> Iterator[list[int]]:
        """Return the encoder's slices; if the engine encodes instead, return empty slices without end."""
        reduction = self._encoder.reduction(iteration)
        if reduction is None:
            return self._encoder.slices(iteration)
        self.sums.reduces(reduction)
        self._protocol.reduce(reduction)
        return repeat([])

    def halt(self) -> None:
        """Stop the engine's reduction: the engine only sends and receives from now on."""
        if (done := self._protocol.reduce(None)) is not None:
            self._encoder.meter.error = done.squared_error
            self.reduced = done.times

    async def open(self, stream: GradientStream, *, current: bool) -> None:
        """Take the stream's pieces as they are put.

        If the stream's gradient was begun in an earlier iteration (not `current`), wait for all pieces first.
        """
        loop = asyncio.get_running_loop()

        def changed() -> None:
            """Wake the engine or the event loop, whichever needs the new piece; called by any thread."""
            if self._protocol.reduction is None or stream.pieces.whole:
                loop.call_soon_threadsafe(self._piece_put)
            self._protocol.wake()

        stream.pieces.changed = changed
        if not current:
            await self._wait.wait_for_pieces(stream.pieces)
        else:
            self._stream = stream
            self.follow()
            stream.tell(self._protocol.await_means)

    async def finish(self, pieces: Pieces) -> None:
        """Await the last piece."""
        await self._wait.wait_for_pieces(pieces)
        self._more()

    def close(self, stream: GradientStream | None) -> None:
        """Take no more pieces of the gradient."""
        self._stream = None
        if stream is not None:
            stream.tell(ignore_awaited)

    def follow(self) -> None:
        """Pass new results to the stream."""
        if self._stream is not None:
            self._stream.follow(self.sums)

    def _piece_put(self) -> None:
        self._wait.piece_put()
        self._more()
