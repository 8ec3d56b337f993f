"""What a job.collective is able to do: attributes that checks, runs and reports read, whichever it is."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from kofn.config.plugins import COLLECTIVES
from kofn.host.collectives.communicator import Communicator
from kofn.host.wire.packet import FORWARDED_PORT

Ks = Literal["any", "fixed", "all"]


class JobCollective:
    """A way to sum the gradients of a training.

    The defaults below describe workers that sum among themselves.  Such a class is also a Communicator; kofn makes it
    with (rank, addresses, job=ID), where `addresses` are all workers' on the data network, by rank.
    """

    ks: ClassVar[Ks] = "all"
    """Which objectives there are: any; fixed:K and all, as k never changes; all alone."""
    ledger: ClassVar[bool] = False
    """Whether it sums kofn's packets: codecs, late gradients, late joiners, a record and a ledger are for these."""
    faults: ClassVar[tuple[str, ...]] = ()
    """Where [[fault]] can be: fault.where."""
    restarts: ClassVar[tuple[str, ...]] = ()
    """Which of "switch" and "worker" [[event]] can kill and start; the controller it always can."""
    server: ClassVar[bool] = False
    """Whether a process sums, at a host of its own, whose link all workers share."""
    simulated: ClassVar[bool] = False
    """Whether `kofn simulate` has it."""
    port: ClassVar[int] = FORWARDED_PORT
    """UDP port of who sums kofn's packets."""

    @classmethod
    def missing(cls) -> str:
        """What has to be installed first, and how; empty: nothing."""
        return ""

    @classmethod
    def busiest_bytes(cls, gradient_bytes: int, workers: int) -> float:
        """What has to go over the busiest link in one direction for an all-reduce, without headers; a ring's."""
        return 2 * (workers - 1) / workers * gradient_bytes

    @classmethod
    def connect(cls, rank: int, addresses: Sequence[str], job: int) -> Communicator:
        """Among the workers, once all are there."""
        make: Any = cls
        made: Communicator = make(rank, addresses, job=job)
        return made


def load_collective(name: str) -> type[JobCollective]:
    """The one of this name; ConfigError where there is none, or it does not say what it can do."""
    return COLLECTIVES.load_class(name, JobCollective)
