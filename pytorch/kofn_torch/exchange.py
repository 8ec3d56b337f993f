"""Exchanges one gradient an iteration through an agent. The gradient's parts go in, in any order, and the parts' means
come out as blocks close.

One thread runs the agent's iterations, another completes the futures that DDP waits for. Both threads end by
themselves, because the agent gives up after a long time without progress (host/kofn_host/agent/iteration_wait.py).
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch

from kofn_host.arrays import Floats
from kofn_host.training import Agent, Aggregate, Contribution, Exchange, GradientStream, JobCoding
from kofn_host.workload import ReplicaState
from kofn_torch.layout import Ranges


class GradientExchange:
    """The exchange of an agent whose job ends with the iteration `last`."""

    def __init__(self, agent: Agent, coding: JobCoding, last: int) -> None:
        self._agent, self._coding, self._last = agent, coding, last
        self._carrier, self._deliverer = (ThreadPoolExecutor(1, f"kofn-{name}") for name in ("gradient", "means"))
        self._gradient, self._mean = np.zeros(coding.elements, np.float32), np.empty(coding.elements, np.float32)
        """Reused by each iteration: allocating them costs more than the work."""
        self._stream = GradientStream(self._gradient, coding.layout.elements)
        self.note = Contribution().note
        """The note that every gradient carries to the other workers."""

    def begin(self, iteration: int, known: Aggregate | None = None, *, own_end: bool = False) -> Future[Exchange]:
        """Begin the gradient of an iteration; put() and reduce() give the gradient its values.

        `known` is the iteration's mean, if the iteration has ended already. By default the exchange of a late gradient
        waits for the end of a later iteration. With `own_end` this exchange does not wait. This call overwrites the
        previous gradient and the mean of its exchange.
        """
        self._stream = GradientStream(self._gradient, self._coding.layout.elements)
        return self._carrier.submit(self._carry, self._stream, iteration, known, own_end)

    def reduce(self, ranges: Ranges, values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Put flat values of any dtype at these ranges. Return a future of their means, which replace the values in
        memory."""
        gradient: Floats = values.detach().float().numpy()
        starts = accumulate((end - begin for begin, end in ranges), initial=0)
        for (begin, end), at in sorted(zip(ranges, starts, strict=False)):  # the first elements leave first
            self._stream.pieces.put(begin, gradient[at : at + end - begin])
        means = torch.futures.Future[torch.Tensor]()
        self._deliverer.submit(_deliver, self._stream, ranges, values, means)
        return means

    def put(self, begin: int, values: torch.Tensor, level: int) -> None:
        """Put flat values from element `begin` on; values with a higher level leave first."""
        piece: Floats = values.detach().float().numpy()
        self._stream.pieces.prioritise(begin, begin + piece.size, level)
        self._stream.pieces.put(begin, piece)

    def wait(self, begin: int, end: int) -> Floats:
        """Wait for the means of these elements."""
        return self._stream.wait(begin, end)

    def gradient(self) -> Floats:
        """Return the values that were put, (elements,)."""
        return self._stream.pieces.values

    def fail(self, error: Exception) -> None:
        """End the gradient with an error; its means will not come."""
        self._stream.fail(error)

    def close(self) -> None:
        for threads in (self._carrier, self._deliverer):
            threads.shutdown(wait=False, cancel_futures=True)

    def _carry(self, stream: GradientStream, begun: int, known: Aggregate | None, own_end: bool) -> Exchange:
        try:
            return self._exchanged(stream, begun, known, own_end)
        except BaseException as error:
            stream.fail(error)
            raise

    def _exchanged(self, stream: GradientStream, begun: int, known: Aggregate | None, own_end: bool) -> Exchange:
        """Exchange the gradient and return the result; contribute nothing once the job's last iteration has ended."""
        earlier = [] if known is None else [known]
        if known is not None:
            stream.finish(known.mean)
        if self._agent.iteration > self._last:
            return Exchange(handed_s=None, missed=earlier)

        def missed(exchange: Exchange) -> bool:
            if isinstance(exchange.ended[0], ReplicaState):
                stream.finish(stream.pieces.values)  # any values will do: the state replaces the step
            return self._agent.iteration <= self._last

        out = None if earlier else self._mean
        given = Contribution(begun=begun, own_end=own_end, stream=stream, out=out, note=self.note)
        exchange = self._agent.all_reduce(given, missed)
        whole = replace(exchange, missed=[*earlier, *exchange.missed])
        if isinstance(whole.updates[0], ReplicaState):
            stream.finish(stream.pieces.values)
        return whole


def _deliver(
    stream: GradientStream, ranges: Ranges, values: torch.Tensor, means: torch.futures.Future[torch.Tensor]
) -> None:
    """Replace the values by the means of these ranges, in order."""
    try:
        at = 0
        for begin, end in ranges:
            values[at : at + end - begin].copy_(torch.from_numpy(stream.wait(begin, end)))
            at += end - begin
        means.set_result(values)
    except BaseException as error:  # any error: a future that never ends would hang the training
        means.set_exception(error)
