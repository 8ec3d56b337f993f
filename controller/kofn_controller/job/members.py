"""The members of a job: one seat for each rank, for at most one stream at a time.

The module knows nothing of k, of gRPC's server or of the switch.
"""

import asyncio
import enum
import logging
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from kofn_common import wall_clock
from kofn_common.numerals import is_numeral
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.errors import AttachError

_LOG = logging.getLogger(__name__)


class SeatState(enum.StrEnum):
    """The state of a worker in its job."""

    ABSENT = "absent"
    ATTACHED = "attached"  # without a Welcome: the worker waits for the start, or for the end of a regroup
    JOINING = "joining"  # welcomed to a running job, and not Ready yet
    TRAINING = "training"
    FINISHED = "finished"
    LOST = "lost"


CLOCKS_DIFFER_S = 86400.0
"""Maximum time in seconds by which another machine's clock may be ahead."""

WELCOMED = (SeatState.JOINING, SeatState.TRAINING, SeatState.FINISHED)

Outbox: TypeAlias = "asyncio.Queue[pb.ControllerMessage | AttachError]"


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """One Attach call of a worker. Its outbox has the messages to send; an AttachError in it ends the call."""

    hello: pb.Hello
    outbox: Outbox = field(default_factory=asyncio.Queue)

    @property
    def rank(self) -> int:
        return self.hello.rank


@dataclass(slots=True, kw_only=True)
class Seat:
    """A rank's place in the job."""

    rank: int
    state: SeatState = SeatState.ABSENT
    stream: Stream | None = None
    attachments: int = 0
    finished: str = ""  # why the worker has finished; empty while it has not
    current: bool = False  # the worker has parameters, and every result of the latest settled generation
    took_part: bool = False  # the worker has begun to train since the start of the job

    @property
    def hello(self) -> pb.Hello:
        """The worker's Hello, if it is attached."""
        assert self.stream is not None
        return self.stream.hello

    def send(self, message: pb.ControllerMessage) -> None:
        """Put a message into the worker's outbox, if it is attached."""
        if self.stream is not None:
            self.stream.outbox.put_nowait(message)


@dataclass(slots=True, kw_only=True)
class Members:
    """The seats of one job."""

    job: int
    workers: int
    seats: list[Seat] = field(init=False)

    def __post_init__(self) -> None:
        self.seats = [Seat(rank=rank) for rank in range(self.workers)]

    @property
    def attached(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.stream is not None]

    @property
    def running(self) -> list[Seat]:
        """The attached workers that have the job's parameters and have not finished."""
        return [seat for seat in self.sources if seat.state is not SeatState.FINISHED]

    @property
    def sources(self) -> list[Seat]:
        """The attached workers that have the job's parameters, which others may fetch."""
        return [seat for seat in self.attached if seat.current]

    @property
    def fresh(self) -> list[Seat]:
        """The attached workers that have no parameters and no Welcome."""
        return [seat for seat in self.attached if seat.state is SeatState.ATTACHED and not seat.current]

    def attach(self, hello: pb.Hello) -> tuple[Stream, bool]:
        """Give a worker its seat; return its stream, and whether it replaces an open stream of the same worker.
        AttachError if the Hello is wrong or the seat is taken.
        """
        self._check(hello)
        seat = self.seats[hello.rank]
        replaced = seat.stream
        if replaced is not None:
            self._replace(seat, replaced, hello)
        seat.stream = stream = Stream(hello=hello)
        seat.attachments += 1
        seat.finished, seat.current = "", False
        _LOG.info(
            "job %d: worker %d attached from %s (%d of %d)",
            self.job, hello.rank, hello.peer_address, len(self.attached), self.workers,
        )  # fmt: skip
        return stream, replaced is not None

    def leave(self, stream: Stream) -> Seat | None:
        """Empty and return the seat of a stream that has ended; None if a newer stream has taken the seat."""
        seat = self.seats[stream.rank]
        if seat.stream is not stream:
            return None
        seat.stream, seat.current = None, False
        return seat

    def peers(self) -> list[pb.PeerAddress]:
        """Return the attached workers by rank."""
        return [pb.PeerAddress(rank=seat.rank, address=seat.hello.peer_address) for seat in self.attached]

    def broadcast(self, message: pb.ControllerMessage) -> None:
        """Send a message to every worker that has been welcomed."""
        for seat in self.attached:
            if seat.state in WELCOMED:
                seat.send(message)

    def _check(self, hello: pb.Hello) -> None:
        """Check a Hello; raise AttachError with the reason for a refusal."""
        if hello.rank >= self.workers:
            message = f"rank {hello.rank}: job {self.job} has the ranks 0 to {self.workers - 1}"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)
        host, _, port = hello.peer_address.rpartition(":")
        if not (host and is_numeral(port) and 0 < int(port) < 65536):
            message = f"peer_address {hello.peer_address!r} of worker {hello.rank}: HOST:PORT is expected"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)
        if hello.iteration and not hello.generation:
            message = f"worker {hello.rank} is in iteration {hello.iteration} of no generation: both or none are known"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)
        if hello.generation > wall_clock.now() + CLOCKS_DIFFER_S:
            message = f"worker {hello.rank}: generation {hello.generation} is in the future (it is a time in seconds)"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)

    def _replace(self, seat: Seat, old: Stream, hello: pb.Hello) -> None:
        """End the older stream of a worker that attaches again; AttachError if the worker is on another host."""
        before, now = (address.rpartition(":")[0] for address in (old.hello.peer_address, hello.peer_address))
        if before != now:
            message = (
                f"worker {seat.rank} of job {self.job} is attached from {before}, this is {now}: "
                "a rank has one worker (one that vanished is given up after 5 s)"
            )
            raise AttachError(grpc.StatusCode.ALREADY_EXISTS, message)
        _LOG.warning("job %d: worker %d attaches again: its older stream is ended", self.job, seat.rank)
        message = f"worker {seat.rank} of job {self.job} has attached again from {hello.peer_address}"
        old.outbox.put_nowait(AttachError(grpc.StatusCode.ABORTED, message))
