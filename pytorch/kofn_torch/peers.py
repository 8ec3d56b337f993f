"""A gradient that workers sum among themselves: each bucket is one all-reduce during the backward pass.

These are the baselines of the switch (job.collective). gloo sums in the process group, as DDP itself does; every other
baseline sums by its Communicator. All workers are in every sum, and no worker can rejoin.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import accumulate
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.distributed as dist

from kofn_host.arrays import Floats, Integers
from kofn_host.collectives import Communicator, Times
from kofn_host.training import Aggregate, Exchange, PeerToPeer, Plan, check_finite
from kofn_torch.errors import TorchError
from kofn_torch.group_calls import GroupCalls
from kofn_torch.layout import Ranges


class BucketSum(Protocol):
    """The call of all workers for each bucket, in the same order."""

    def mean(self, values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Return the mean of all workers' values, in the same dtype; the call may overwrite `values`."""

    def notes(self, own: Integers) -> Integers:
        """Return all workers' notes, by rank."""

    def close(self) -> None: ...


class GroupSum:
    """Sums by a process group, as DDP does without a hook."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def mean(self, values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        values.div_(self._group.size())
        called: Any = dist.all_reduce(values, group=self._group, async_op=True)
        means: torch.futures.Future[torch.Tensor] = called.get_future().then(lambda done: done.value()[0])
        return means

    def notes(self, own: Integers) -> Integers:
        found: Integers = GroupCalls(self._group).gather(own)
        return found

    def close(self) -> None:
        """Do nothing: the group is the script's."""


class CommunicatorSum:
    """Sums by a Communicator, in float32."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.close = communicator.close

    def mean(self, values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        means = torch.futures.Future[torch.Tensor]()

        def done(work: Future[Floats]) -> None:
            try:
                means.set_result(torch.from_numpy(work.result()).to(values.dtype))
            except Exception as error:  # a future that never ends would hang the training
                means.set_exception(error)

        array = values.detach().float().numpy()  # the bucket's own memory if its dtype is float32
        self._communicator.all_reduce(array, op="mean", out=array).add_done_callback(done)
        return means

    def notes(self, own: Integers) -> Integers:
        found: Integers = self._communicator.all_gather(own).result()
        return found


class PeerReducer(PeerToPeer):
    """A Reducer whose iterations a PeerExchange makes. `connect` waits for all workers and returns the BucketSum."""

    def __init__(self, connect: Callable[[], BucketSum], plan: Plan) -> None:
        made: Any = connect
        super().__init__(made, plan)
        self.plan = plan

    async def close(self) -> None:
        """Close in this thread, because all other threads have ended at the process's end."""
        if self._communicator is not None:
            self._communicator.close()

    @property
    def sum(self) -> BucketSum:
        assert self._communicator is not None
        connected: Any = self._communicator
        return cast(BucketSum, connected)


class PeerExchange:
    """An exchange between peers, with the methods of exchange.GradientExchange."""

    def __init__(self, reducer: PeerReducer, elements: int, workers: int) -> None:
        self._reducer, self._workers = reducer, workers
        self._gradient, self._mean = np.zeros(elements, np.float32), np.zeros(elements, np.float32)
        """Reused by each iteration, as in GradientExchange, so that the baseline has the same advantage."""
        self._pass = GradientPass(self._gradient, self._mean)

    def begin(self, iteration: int, known: Aggregate | None = None, *, own_end: bool = False) -> Future[Exchange]:
        """Begin as GradientExchange does. `known` and `own_end` are ignored, because all workers are in every sum."""
        self._pass = begun = GradientPass(self._gradient, self._mean)
        exchanged = Future[Exchange]()

        def end(means: Future[Floats]) -> None:
            if error := means.exception():
                exchanged.set_exception(error)
                return
            times = Times(wait=time.monotonic() - begun.begun_s)
            self._reducer.iteration = iteration + 1
            update = Aggregate.of_all(iteration, means.result(), self._workers, self._reducer.plan)
            exchanged.set_result(Exchange(handed_s=begun.begun_s, ended=[update], times=times))

        begun.means.add_done_callback(end)
        return exchanged

    def notes(self, own: Integers) -> Integers:
        """Return all workers' notes, by rank."""
        return self._reducer.sum.notes(own)

    def reduce(self, ranges: Ranges, values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        begun = self._pass
        begun.put(ranges, values)
        means = self._reducer.sum.mean(values)
        means.add_done_callback(lambda done: begun.take(ranges, done))
        return means

    def gradient(self) -> Floats:
        return self._pass.gradient

    def fail(self, error: Exception) -> None:
        self._pass.fail(error)

    def close(self) -> None:
        """Do nothing: the reducer is closed with the job."""


class GradientPass:
    """A gradient and its mean, bucket by bucket, in the arrays `gradient` and `mean` (elements,). The future `means`
    has the whole mean."""

    def __init__(self, gradient: Floats, mean: Floats) -> None:
        self.gradient, self._mean = gradient, mean
        self.means, self.begun_s = Future[Floats](), time.monotonic()
        self._left, self._lock = mean.size, threading.Lock()

    def put(self, ranges: Ranges, values: torch.Tensor) -> None:
        """Put a bucket. Raise GradientError if it is not finite."""
        _copy(self.gradient, ranges, values)
        for begin, end in ranges:
            check_finite(self.gradient[begin:end], begin)

    def take(self, ranges: Ranges, done: torch.futures.Future[torch.Tensor]) -> None:
        """Take a bucket's means, or the error of its sum."""
        try:
            values = done.value()
        except Exception as error:  # of any kind
            self.fail(TorchError(f"the workers' all-reduce failed: {error}"))
            return
        _copy(self._mean, ranges, values)
        with self._lock:
            self._left -= values.numel()
            whole = self._left == 0
        if whole:
            self.means.set_result(self._mean)

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self.means.done():
                self.means.set_exception(error)


def _copy(target: Floats, ranges: Ranges, values: torch.Tensor) -> None:
    given: Floats = values.detach().float().numpy()
    starts = accumulate((end - begin for begin, end in ranges), initial=0)
    for (begin, end), at in zip(ranges, starts, strict=False):
        target[begin:end] = given[at : at + end - begin]
