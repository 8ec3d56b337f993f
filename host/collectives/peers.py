"""Communicators whose workers carry calls out among themselves, all of them in every one.

The workers agree first on every call (coordinator.py), so a kind that derives from PeerCommunicator carries out calls
that are alike everywhere, in an order that is the same everywhere.
"""

import math
import threading
from abc import abstractmethod
from collections.abc import Sequence
from numbers import Real

import numpy as np

from kofn.host.collectives.call import Array, CollectiveCall
from kofn.host.collectives.communicator import Communicator, Task
from kofn.host.collectives.coordinator import Coordinator, grace_s
from kofn.host.collectives.job_collective import JobCollective
from kofn.host.collectives.meeting import Meeting, meet
from kofn.host.collectives.messages import Hello
from kofn.host.collectives.participant import Listener, Participant
from kofn.host.collectives.work import WorkOutcome
from kofn.host.errors import CollectiveError, HostError

TIMEOUT_S = 60.0
MEET_S = 30.0


class Stalled(HostError):  # noqa: N818  # not yet anybody's error
    """Nothing moves in a call; its words say what is waited for."""


class PeerCommunicator(Communicator, JobCollective):
    """A Communicator of the workers at `addresses` (HOST or HOST:PORT), by rank; returns when all are there.

    Worker 0 listens at its address; other ports are chosen by the workers.  `meet_s`: for all to come.  `timeout_s`: of
    a call, until all workers have made it, and then since anything moved the last time.
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
            reason = self._failed or self._blame(error)
            self._abandon(reason)
            raise CollectiveError(reason) from error

    @abstractmethod
    def _prepare(self, host: str) -> str:
        """Before the meeting: what the others need to know to connect to this worker, at its own address."""

    @abstractmethod
    def _connect(self, cards: Sequence[str], secret: str, limit_s: float) -> None:
        """To the others, who have prepared; CollectiveError where that fails."""

    @abstractmethod
    def _interrupt(self) -> None:
        """A _carry() under way fails soon, if that can be had; any thread may call it, and more than once."""

    def _abandon(self, reason: str) -> None:
        """It does not come to calls: the others are told, where there are any by now."""
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

    def fail(self, reason: str) -> None:
        """All calls end, here now, and at the others as soon as worker 0 has told them; any thread may call it."""
        if self._participant is not None and not self._failed:
            self._participant.report(reason, silent=False)
        self._fail(reason)
        self._interrupt()

    def _submit(self, task: Task) -> None:
        assert self._participant is not None
        self._participant.post(task.key, str(task.call), self._note(task))

    def _note(self, task: Task) -> bytes:
        """Of the call, as of messages.Posted."""
        return b""

    def _end(self, reason: str, at_once: bool) -> None:
        """The coordinator's last word."""
        if at_once:
            self._over.set()
            self._fail(reason)
            self._interrupt()
        else:
            self._fail_later(reason)

    def _break(self, task: Task, error: Exception) -> None:
        """The coordinator's words count: it knows more."""
        reason = f"{self._blame(error)}, in {task}"
        if not self._failed:
            assert self._participant is not None
            self._participant.report(reason, silent=isinstance(error, Stalled))
            self._over.wait(4 * grace_s(self._timeout_s))
        self._fail(reason)

    def _computed(self, task: Task) -> WorkOutcome[Array]:
        """For those who sum and count no bytes: a mean is divided here, bytes are a ring's."""
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
