"""Matches the workers' calls: calls of one Key belong together, and must be equal.  No I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kofn_host.collectives.call import Key, named


@dataclass(slots=True)
class _Pending:
    """A call that the workers `ranks` have made; worker `rank` made it first, at `since_s`."""

    call: str
    rank: int
    since_s: float
    ranks: set[int] = field(default_factory=set)


class Mismatch(Exception):  # noqa: N818  # a verdict that the coordinator handles
    """The workers' calls cannot be matched; the message names workers and calls."""


class Matching:
    """Calls that wait for workers; workers may make calls in different orders."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pending: dict[Key, _Pending] = {}
        self._left: dict[int, None] = {}

    def post(self, rank: int, key: Key, call: str, now_s: float) -> bool:
        """Note a worker's call; return whether all workers have made it.

        Mismatch if the workers' calls differ, or if a worker that has left has not made the call.
        """
        pending = self._pending.setdefault(key, _Pending(call, rank, now_s))
        if pending.call != call:
            raise Mismatch(
                f"the workers' calls differ: worker {pending.rank} calls {pending.call}, worker {rank} calls {call},"
                f" both as {key}"
            )
        pending.ranks.add(rank)
        self._check_left(key)
        if len(pending.ranks) < self._workers:
            return False
        del self._pending[key]
        return True

    def leave(self, rank: int) -> None:
        """Note that a worker makes no more calls; Mismatch if a call waits for this worker."""
        self._left[rank] = None
        for key in self._pending:
            self._check_left(key)

    def overdue(self, now_s: float, limit_s: float) -> str:
        """Return a description of a call that has waited longer than `limit_s`; empty if there is none."""
        for key, pending in self._pending.items():
            if now_s - pending.since_s <= limit_s:
                break  # all later calls in _pending are younger
            return f"not made in {limit_s:g} s by {self.absent(key)}"
        return ""

    def absent(self, key: Key) -> str:
        """Return the workers that have not made a call, and the call; empty if all workers have made it."""
        if (pending := self._pending.get(key)) is None:
            return ""
        late = [rank for rank in range(self._workers) if rank not in pending.ranks]
        return f"{named(late)}: the call {pending.call} ({key}) of worker {pending.rank}{self._instead(late)}"

    def _check_left(self, key: Key) -> None:
        pending = self._pending[key]
        for rank in self._left:
            if rank not in pending.ranks:
                raise Mismatch(
                    f"worker {rank} has closed its communicator: it does not make the call {pending.call} ({key}) of"
                    f" worker {pending.rank}"
                )

    def _instead(self, late: Sequence[int]) -> str:
        """Return a description of a pending call that one of these workers has made instead."""
        for rank in late:
            for key, other in self._pending.items():
                if rank in other.ranks:
                    return f"; worker {rank} calls {other.call} ({key})"
        return ""
