"""The capabilities of a job.collective, as attributes for checks, runs and reports."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from kofn_common.config.plugins import COLLECTIVES
from kofn_common.config.schema import Config
from kofn_common.wire.packet import FORWARDED_PORT

Ks = Literal["any", "fixed", "all"]


class JobCollective:
    """A way to sum the gradients of a training.

    The defaults describe workers that sum among themselves.  A subclass that keeps the defaults is also a Communicator
    of kofn_host, and `connect` makes the object.
    """

    ks: ClassVar[Ks] = "all"
    """The supported objectives: "any"; "fixed" (fixed:K and all: k never changes); "all" only."""
    ledger: ClassVar[bool] = False
    """Whether the collective sums kofn's packets; codecs, late gradients, late joiners, records and ledgers need
    this."""
    counts_packets: ClassVar[bool] = False
    """Whether the collective's statistics count the packets of its protocol and the retransmissions."""
    faults: ClassVar[tuple[str, ...]] = ()
    """The supported values of fault.where."""
    restarts: ClassVar[tuple[str, ...]] = ()
    """The processes, "switch" or "worker", that an [[event]] can kill and start besides the controller."""
    server: ClassVar[str] = ""
    """The module of a server on a separate host, which `python -m` runs before the workers; empty: there is none.

    Its options are those of `parameter_server`: --address, --worker for each worker by rank, --k, --job, --slots,
    and --switch-segments if the switch segments coalesced packets itself.
    """
    simulated: ClassVar[bool] = False
    """Whether `kofn simulate` supports the collective."""
    data_plane: ClassVar[str] = "kofn"
    """The data plane that the switch runs: kofn's, or `module:Name` of a class like kofn_controller's DataPlane."""
    port: ClassVar[int] = FORWARDED_PORT
    """The UDP port of the switch or server that sums kofn's packets."""

    @classmethod
    def missing(cls) -> str:
        """Return which software is missing and how to install it; empty if none is missing."""
        return ""

    @classmethod
    def sharing(cls, workers: int) -> int:
        """Return the number of workers whose packets share one link: all workers before a server, otherwise one."""
        return workers if cls.server else 1

    @classmethod
    def busiest_bytes(cls, gradient_bytes: int, workers: int) -> float:
        """Return an all-reduce's bytes over the busiest link in one direction, without headers. The default is a
        ring's."""
        return 2 * (workers - 1) / workers * gradient_bytes

    @classmethod
    def connect(cls, rank: int, addresses: Sequence[str], config: Config) -> Any:
        """Return a Communicator of kofn_host, once all workers are there: by default cls(rank, addresses, job=ID).

        `addresses`: all workers' addresses on the data network, by rank.
        """
        make: Any = cls
        return make(rank, addresses, job=config.job.id)


def servers_of(names: Iterable[str]) -> int:
    """Return the number of servers of jobs with these collectives."""
    return sum(bool(load_collective(name).server) for name in names)


def load_collective(name: str) -> type[JobCollective]:
    """Return the collective of this name; ConfigError if there is none, or it is not a JobCollective."""
    return COLLECTIVES.load_class(name, JobCollective)
