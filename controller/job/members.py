"""The members of a job: one seat for each rank, taken by at most one stream at a time.

Knows nothing of k, of gRPC's server or of the switch.
"""

import asyncio
import enum
import logging
import time
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from kofn.controller.errors import AttachError
from kofn.rpc import kofn_pb2 as pb

_LOG = logging.getLogger(__name__)


class SeatState(enum.StrEnum):
    """The part that a worker plays in its job."""

    ABSENT = "absent"
    ATTACHED = "attached"  # without a Welcome: it waits for the start, or for the end of a regroup
    JOINING = "joining"  # welcomed to a job that goes on, and not Ready yet
    TRAINING = "training"
    FINISHED = "finished"
    LOST = "lost"


CLOCKS_DIFFER_S = 86400.0
"""Most that another machine's clock is believed to be ahead."""

WELCOMED = (SeatState.JOINING, SeatState.TRAINING, SeatState.FINISHED)

Outbox: TypeAlias = "asyncio.Queue[pb.ControllerMessage | AttachError]"


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """One Attach call: what it is sent, and last of all why it is ended, if we end it."""

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
    finished: str = ""  # the reason that it gave
    current: bool = False  # it has parameters, and every result of the generation that was in force last
    took_part: bool = False  # it has begun to train since the job's start

    @property
    def hello(self) -> pb.Hello:
        """How it introduced itself; only where it is attached."""
        assert self.stream is not None
        return self.stream.hello

    def send(self, message: pb.ControllerMessage) -> None:
        """Put into its outbox, if it is attached."""
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
        """Those that are in the middle of the job."""
        return [seat for seat in self.sources if seat.state is not SeatState.FINISHED]

    @property
    def sources(self) -> list[Seat]:
        """Those that have the job's parameters: others may take theirs."""
        return [seat for seat in self.attached if seat.current]

    @property
    def fresh(self) -> list[Seat]:
        """Those that wait without a Welcome and have nothing."""
        return [seat for seat in self.attached if seat.state is SeatState.ATTACHED and not seat.current]

    def attach(self, hello: pb.Hello) -> tuple[Stream, bool]:
        """Give a worker its seat; return the stream, and whether it replaces an open stream of the same worker; else
        AttachError.
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
        """The seat that a stream's end empties; None where another stream has it already."""
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
        """A Hello that can be one of this job's."""
        if hello.rank >= self.workers:
            message = f"rank {hello.rank}: job {self.job} has the ranks 0 to {self.workers - 1}"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)
        host, _, port = hello.peer_address.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 65536):
            message = f"peer_address {hello.peer_address!r} of worker {hello.rank}: HOST:PORT is expected"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)
        if hello.iteration and not hello.generation:
            message = f"worker {hello.rank} is in iteration {hello.iteration} of no generation: both or none are known"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)
        if hello.generation > time.time() + CLOCKS_DIFFER_S:
            message = f"worker {hello.rank}: generation {hello.generation} is in the future (it is a time in seconds)"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)

    def _replace(self, seat: Seat, old: Stream, hello: pb.Hello) -> None:
        """End the older stream of a worker that is here again; another host's worker of that rank is a mistake."""
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
