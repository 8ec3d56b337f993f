"""A gradient that a worker contributes to an iteration, and the outcome."""

from collections.abc import Sequence
from dataclasses import dataclass

from kofn_host.agent.gradient_stream import GradientStream
from kofn_host.arrays import Floats
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.side_values import NOTHING, SideValues
from kofn_host.stopwatch import UNMEASURED, Times
from kofn_host.workload.replica import ReplicaState

Update = Aggregate | ReplicaState
"""The end of an iteration: its mean, or a peer's replica in place of the updates that this worker has missed."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A gradient for the current iteration.

    `gradient`, shape (elements,); None: the gradient was given before a restart, or `stream` delivers it in pieces and
    takes the means as blocks close.  `begun`: the iteration in which the gradient was begun, None: the current one;
    `batch`: the gradient's number in that iteration, from 0.  `stays`: the call does not wait for an iteration's end;
    `own_end`: the call waits only for the end of the iteration `begun`. `good`: compression.codec.check has passed the
    gradient. `out`, shape (elements,), no overlap with the gradient: memory for the mean of iteration `begun`.  `note`:
    numbers for all workers, if the job's coding has notes.
    """

    gradient: Floats | None = None
    begun: int | None = None
    batch: int = 0
    stays: bool = False
    own_end: bool = False
    stream: GradientStream | None = None
    good: bool = False
    out: Floats | None = None
    note: SideValues = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The outcome of a contribution.

    `handed_s`: time.monotonic() when the gradient's first block was encoded, None if the gradient was not contributed.
    `age`: the number of iterations that ended between the gradient's begin and `handed_s`.  `missed`: the updates
    before the contribution; `ended`: the updates after it.  `times`: the parts of the last attempt's time; `reduced`:
    the part of `times` that the engine thread spent.
    """

    handed_s: float | None
    age: int = 0
    missed: Sequence[Update] = ()
    ended: Sequence[Update] = ()
    times: Times = UNMEASURED
    reduced: Times = UNMEASURED

    @property
    def updates(self) -> list[Update]:
        """All updates, in order."""
        return [*self.missed, *self.ended]

    @property
    def late(self) -> bool:
        """Whether the gradient's iteration had ended elsewhere before it was contributed."""
        return bool(self.missed)
