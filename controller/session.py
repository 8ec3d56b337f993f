"""One job's life: workers attach, start together, report, finish or vanish; k follows.

No gRPC server and no connection to a switch in here: `service` brings the messages, `put` carries k to the switch.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc

from controller.decide import Change, Decider
from controller.errors import AttachError, PushError
from controller.journal import Journal
from controller.measure import Arrival, Report
from rpc import kofn_pb2 as pb

_LOG = logging.getLogger(__name__)

TICK_S = 0.02
"""How often the silence of workers is looked at."""

DECISION_SHARE = 0.05
"""Most of one CPU's time that decisions may take."""

FIRST_ITERATION = 1

GOALS_REACHED = ("target", "iterations")
"""Reasons of Finished that all workers come to by themselves: no one has to go on without the others."""

Put = Callable[[int], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Seat:
    """An attached worker: what it is sent, and how far it is."""

    rank: int
    peer_address: str
    outbox: asyncio.Queue[pb.ControllerMessage] = field(default_factory=asyncio.Queue)
    finished: str = ""  # the reason that it gave


@dataclass(slots=True, kw_only=True)
class Session:
    """The job: seats of the attached workers, and the decider."""

    job: int
    decider: Decider
    journal: Journal
    put: Put  # brings k into the switch; PushError where that fails
    seats: dict[int, Seat] = field(default_factory=dict)
    started: bool = False
    stopped: bool = False
    version: int = 0  # counts what a status would show
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)  # a change waits to be pushed
    _sampled: int = 0
    _rest_until_s: float = 0.0

    @property
    def workers(self) -> int:
        """n."""
        return self.decider.workers

    def attach(self, hello: pb.Hello) -> Seat:
        """Give the worker its seat; AttachError says why not. The last one starts the job."""
        rank = hello.rank
        if hello.job != self.job:
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, f"job {hello.job}: this controller runs job {self.job}")
        if rank >= self.workers:
            message = f"rank {rank}: job {self.job} has the ranks 0 to {self.workers - 1}"
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, message)
        if rank in self.seats:
            raise AttachError(grpc.StatusCode.ALREADY_EXISTS, f"worker {rank} of job {self.job} is attached already")
        if self.started:
            message = f"job {self.job} has started: worker {rank} cannot join any more"
            raise AttachError(grpc.StatusCode.FAILED_PRECONDITION, message)
        seat = self.seats[rank] = Seat(rank=rank, peer_address=hello.peer_address)
        self.version += 1
        _LOG.info("worker %d attached from %s (%d of %d)", rank, seat.peer_address, len(self.seats), self.workers)
        if len(self.seats) == self.workers:
            self._start()
        return seat

    def report(self, rank: int, report: pb.Report) -> None:
        """A worker's view of one iteration."""
        taken = Report(
            iteration=report.iteration,
            first_block_s=report.first_block_s,
            censored=report.censored,
            late=report.late,
        )
        if not self.decider.measurements.report(rank, taken, time.monotonic()):
            return
        self.version += 1
        self.look()
        if self.decider.iteration > self._sampled:
            self._sampled = self.decider.iteration
            self.journal.sample(self.decider)

    def arrival(self, arrival: Arrival) -> None:
        """The switch's view."""
        if self.started:
            self.decider.measurements.arrival(arrival, time.monotonic())

    def look(self) -> None:
        """Decide, if that is due and the last decisions have left CPU time for it."""
        begin_s = time.monotonic()
        if not self.started or self.stopped or begin_s < self._rest_until_s or not self.decider.due(begin_s):
            return
        self._apply(self.decider.decide(begin_s))
        end_s = time.monotonic()
        self._rest_until_s = end_s + (end_s - begin_s) / DECISION_SHARE
        self.version += 1

    def finish(self, rank: int, reason: str) -> None:
        """A worker is done; when all are, all may stop."""
        self.seats[rank].finished = reason or "finished"
        _LOG.info("worker %d finished: %s", rank, reason)
        if self._stop_if_done() or reason in GOALS_REACHED:
            return
        self._apply(self.decider.lose(rank, f"finished ({reason})", time.monotonic()))

    def leave(self, rank: int) -> None:
        """A worker's stream is gone: expected after Stop, a loss before."""
        seat = self.seats.pop(rank)
        self.version += 1
        if self.stopped:
            return
        if not self.started:
            _LOG.warning("worker %d left before the start (%d of %d)", rank, len(self.seats), self.workers)
            return
        if self.decider.live[rank]:
            words = f"finished ({seat.finished}) and left" if seat.finished else "lost"
            _LOG.log(logging.INFO if seat.finished else logging.WARNING, "worker %d %s", rank, words)
            self._apply(self.decider.lose(rank, words, time.monotonic()))
        self._stop_if_done()

    def set_objective(self, text: str) -> None:
        """Follow another objective; ConfigError names what is allowed."""
        change = self.decider.set_objective(text, time.monotonic())
        _LOG.info("objective: %s", text)
        self.version += 1
        self._apply(change)

    async def watch(self) -> None:
        """Look at silent workers, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.look()

    async def carry(self) -> None:
        """Bring each new k to the switch, then tell the workers; until cancelled. Of several only the latest counts."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            k, iteration = self.decider.k, self.decider.iteration
            try:
                await self.put(k)
            except PushError as error:
                _LOG.error("k = %d was not pushed: %s", k, error)
                continue
            self._broadcast(pb.ControllerMessage(decision=pb.Decision(k=k, from_iteration=iteration + 1)))

    def _start(self) -> None:
        """Everyone is here: all start together."""
        self.started = True
        self.decider.measurements.begin(time.monotonic())
        peers = [pb.PeerAddress(rank=seat.rank, address=seat.peer_address) for seat in self.seats.values()]
        welcome = pb.Welcome(
            workers=self.workers,
            k=self.decider.k,
            first_iteration=FIRST_ITERATION,
            peers=sorted(peers, key=lambda peer: peer.rank),
        )
        self._broadcast(pb.ControllerMessage(welcome=welcome))
        _LOG.info("all %d workers are attached: start with k = %d", self.workers, self.decider.k)

    def _stop_if_done(self) -> bool:
        """Tell all to stop once every attached worker has finished."""
        self.version += 1
        if self.stopped or not self.started or not all(seat.finished for seat in self.seats.values()):
            return False
        self.stopped = True
        reason = ", ".join(sorted({seat.finished for seat in self.seats.values()})) or "no worker is left"
        self._broadcast(pb.ControllerMessage(stop=pb.Stop(reason=reason)))
        _LOG.info("stop: %s", reason)
        return True

    def _apply(self, change: Change | None) -> None:
        """Log a change, note it, have it carried out."""
        if change is None:
            return
        _LOG.info("iteration %d: k %d -> %d (%s)", change.iteration, change.previous_k, change.k, change.reason)
        self.journal.decision(self.decider, change)
        self._wanted.set()

    def _broadcast(self, message: pb.ControllerMessage) -> None:
        """To every attached worker."""
        for seat in self.seats.values():
            seat.outbox.put_nowait(message)
