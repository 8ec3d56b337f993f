"""Communicators whose workers carry out calls among themselves; every call needs all workers.

The workers first agree on every call (coordinator.py), so a subclass of PeerCommunicator carries out the same calls in
the same order at all workers.
"""

import math
import threading
from abc import abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from kofn_common.collectives.job_collective import JobCollective
from kofn_host.collectives.call import Array, CollectiveCall
from kofn_host.collectives.communicator import Communicator, Task, blame
from kofn_host.collectives.coordinator import Coordinator, grace_s
from kofn_host.collectives.meeting import Meeting, meet
from kofn_host.collectives.messages import Hello
from kofn_host.collectives.participant import Listener, Participant
from kofn_host.collectives.work import Work, WorkOutcome
from kofn_host.errors import CollectiveError, HostError

TIMEOUT_S = 60.0
MEET_S = 30.0


class Stalled(HostError):  # noqa: N818  # the coordinator decides which worker is to blame
    """Nothing moves in a call; the message names the cause of the wait."""


class PeerCommunicator(Communicator, JobCollective):
    """A Communicator of the workers at `addresses` (HOST or HOST:PORT), by rank; it waits until all workers have come.

    Worker 0 listens at its address; the workers choose other ports.  `meet_s`: the longest wait for all workers.
    `timeout_s`: the longest time until all workers have made a call, and then the longest time without progress.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        *,
        job: int = 1,
        timeout_s: float = TIMEOUT_S,
        meet_s: float = MEET_S,
    ) -> None:
        _check_addresses(addresses)
        _check_seconds(timeout_s=timeout_s, meet_s=meet_s)
        super().__init__(rank, len(addresses))
        self._timeout_s = timeout_s
        self._over = threading.Event()
        self._coordinator: Coordinator | None = None
        self._participant: Participant | None = None
        try:
            card = self._prepare(addresses[rank].partition(":")[0])
            hello = Hello(kind=type(self).__name__, job=job, workers=self.workers, rank=rank, card=card)
            meeting = meet(addresses, hello, meet_s=meet_s, limit_s=timeout_s)
            self._take_part(meeting)
            self._connect(meeting.welcome.cards, meeting.welcome.secret, meet_s)
        except Exception as error:
            reason = self._failed or blame(self.rank, error)
            self._abandon(reason)
            raise CollectiveError(reason) from error

    @abstractmethod
    def _prepare(self, host: str) -> str:
        """Return this worker's card, with which the others can connect to this worker at the address `host`."""

    @abstractmethod
    def _connect(self, cards: Sequence[str], secret: str, limit_s: float) -> None:
        """Connect to the others, which have prepared; CollectiveError on failure."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Make a running _carry() fail soon, if possible; any thread may call this, repeatedly."""

    def _abandon(self, reason: str) -> None:
        """Give up before the first call; notify the others if they are connected."""
        if self._participant is not None:
            self._participant.report(reason, silent=False)
        self.close()

    def _take_part(self, meeting: Meeting) -> None:
        if meeting.channels:
            self._coordinator = Coordinator(meeting.channels, self._timeout_s)
            self._coordinator.start()
        self._participant = Participant(meeting.own, Listener(agreed=self._agreed, over=self._end), self._timeout_s)
        self._participant.start()

    def _check(self, call: CollectiveCall, given: Array) -> None:
        if call.elastic:
            raise CollectiveError(f"elastic must be False, got True: a {type(self).__name__} needs all workers")

    def fail(self, reason: str, *, late: Work[Any] | None = None) -> None:
        with self._lock:
            key = next((key for key, task in self._open.items() if task.work is late), None)
        if self._participant is not None and not self._failed:
            self._participant.report(reason, silent=key is not None, key=key)
        if key is None:
            self._fail(reason)
            self._interrupt()

    def _submit(self, task: Task) -> None:
        assert self._participant is not None
        self._participant.post(task.key, str(task.call), self._note(task))

    def _note(self, task: Task) -> bytes:
        """Return the call's note for messages.Posted."""
        return b""

    def _end(self, reason: str, at_once: bool) -> None:
        """Handle the coordinator's Over."""
        if at_once:
            self._over.set()
            self._fail(reason)
            self._interrupt()
        else:
            self._fail_later(reason)

    def _break(self, task: Task, error: Exception) -> None:
        """Report a failed call; the coordinator's reason has precedence, because it knows all workers."""
        reason = f"{blame(self.rank, error)}, in {task}"
        if not self._failed:
            assert self._participant is not None
            self._participant.report(reason, silent=isinstance(error, Stalled))
            self._over.wait(4 * grace_s(self._timeout_s))
        self._fail(reason)

    def _computed(self, task: Task) -> WorkOutcome[Array]:
        """Finish a call of a library that only sums: divide if the call is a mean, and compute the bytes of a ring."""
        task.watch.turn("sum")
        out, n = task.out, self.workers
        if task.call.op == "mean":
            np.divide(out, out.dtype.type(n), out=out)
        rounds = {"all_reduce": 2 * (n - 1), "broadcast": n}.get(task.call.kind, n - 1)
        size = rounds * max(task.given.nbytes, out.nbytes) // n
        return WorkOutcome(value=out, count=n, times=task.watch.times(), sent_bytes=size, received_bytes=size)

    def _leave(self, trouble: str) -> None:
        self._interrupt()
        if self._participant is not None:
            self._participant.leave(trouble)
        if self._coordinator is not None:
            self._coordinator.join()


def _check_addresses(addresses: Sequence[str]) -> None:
    listed = isinstance(addresses, Sequence) and not isinstance(addresses, str)
    if not listed or not all(isinstance(address, str) for address in addresses):
        raise CollectiveError(f"addresses must be HOST or HOST:PORT of each worker, by rank, got {addresses!r}")


def _check_seconds(**times: float) -> None:
    for name, seconds in times.items():
        if not isinstance(seconds, Real) or not 0 < seconds < math.inf:
            raise CollectiveError(f"{name} must be a number of seconds above 0, got {seconds!r}")
