"""One job's session: passes news of workers and switch to the control loop, and k and generations to the switch.

The session has no gRPC server and no connection to a switch: `service` brings the messages, and `slots` represents the
switch. `lifecycle` decides which workers take part.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field

import grpc
import numpy as np

from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.objectives import check_objective
from kofn_common.config.plugins import MODULE
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.running_clock import RunningClock
from kofn_controller.errors import AttachError, PushError
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.job import messages
from kofn_controller.job.agreement import Agreement, AnnouncedK
from kofn_controller.job.explain import Waiting
from kofn_controller.job.journal import Journal
from kofn_controller.job.lifecycle import Lifecycle
from kofn_controller.job.link_news import LinkNews
from kofn_controller.job.members import Members, Stream
from kofn_controller.job.state import JobState, Phase
from kofn_controller.p4runtime.entries import Found
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.policy.control_loop import Change, ControlLoop
from kofn_controller.policy.decision_pacer import TICK_S, DecisionPacer

_LOG = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Time after which a write that the switch refused is repeated."""
PAUSE_S = 2.0
"""The longest time between two ticks of a running controller."""


@dataclass(slots=True, kw_only=True)
class JobSession:
    """A job's state, members, control loop, and slots in the switch."""

    job: JobSection
    control_loop: ControlLoop
    journal: Journal
    slots: Slots
    clock: RunningClock = field(default_factory=lambda: RunningClock(PAUSE_S))
    """The clock of all decisions. It stands still while the controller does not run, so that this time does not count
    as silence of the workers."""
    agreement: Agreement = field(default_factory=Agreement)
    job_state: JobState = field(init=False)
    life: Lifecycle = field(init=False)
    waiting: Waiting = field(init=False)
    objectives: Collection[str] = ()  # the objectives that the configuration names
    version: int = 0  # counts changes that a status shows
    _links: LinkNews = field(default_factory=LinkNews)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)  # a k or a generation must go to the switch
    _sampled: int = 0  # the latest iteration in the journal
    _pacer: DecisionPacer = field(default_factory=DecisionPacer)

    def __post_init__(self) -> None:
        """Create the parts without workers, and listen to the switch."""
        self.job_state = JobState(
            members=Members(job=self.job.id, workers=self.job.workers),
            control_loop=self.control_loop,
            slots=self.slots,
            agreement=self.agreement,
            start_workers=self.job.start_workers or self.job.workers,
            apply=self._apply,
            wake=self._wanted.set,
        )
        self.life = Lifecycle(job_state=self.job_state)
        self.waiting = Waiting(job_state=self.job_state, recovery=self.life.recovery)
        self.slots.on_force = self._announce_k
        self.slots.on_arrival, self.slots.on_found, self.slots.on_lost = self.arrival, self._found, self._lost

    @property
    def started(self) -> bool:
        """Whether workers are or were training."""
        return self.job_state.started

    @property
    def stopped(self) -> bool:
        return self.job_state.phase is Phase.OVER

    @property
    def members(self) -> Members:
        return self.job_state.members

    # -- workers

    def attach(self, hello: pb.Hello) -> Stream:
        """Give a worker its seat; AttachError says why the worker cannot take part."""
        if hello.job != self.job.id:
            raise AttachError(grpc.StatusCode.INVALID_ARGUMENT, f"job {hello.job}: this is job {self.job.id}")
        self.version += 1
        stream = self.life.attach(hello, self.clock())
        self._links.attached(stream.rank, new=not hello.iteration)
        self.control_loop.follows[stream.rank] = hello.follows
        self._set_followers()
        return stream

    def take(self, stream: Stream, message: pb.WorkerMessage) -> None:
        """Take a worker's message after its Hello; ignore it if it comes on a replaced stream."""
        rank = stream.rank
        if self.members.seats[rank].stream is not stream:
            return
        match message.WhichOneof("message"):
            case "report":
                self._report(rank, message.report)
                return
            case "ready":
                self.life.ready(rank, message.ready.iteration, self.clock())
            case "regrouped":
                self.life.recovery.answer(rank, message.regrouped.generation, self.clock())
            case "slot_ahead":
                self.life.slot_ahead(rank, message.slot_ahead, self.clock())
            case "saved":
                self.job_state.checkpoints.saved(rank, message.saved, self.clock())
            case "finished":
                if not any(seat.finished for seat in self.members.seats):
                    self._decide()  # use all measurements so far: from now on silence is no sign of a slow worker
                self.life.finish(rank, message.finished.reason, self.clock())
            case other:
                _LOG.warning("job %d: worker %d sends %s after its Hello: ignored", self.job.id, rank, other)
        self.version += 1

    def leave(self, stream: Stream) -> None:
        """Note that a worker's stream has ended."""
        self.life.leave(stream, self.clock())
        self.job_state.checkpoints.look(self.clock())
        self.version += 1

    def _report(self, rank: int, report: pb.Report) -> None:
        """Take a worker's report of one iteration."""
        before, now_s = self.control_loop.iteration, self.clock()
        if not self.control_loop.report(rank, report, now_s):
            return
        if self.control_loop.iteration > before:
            self.waiting.moved_s = now_s
        self.version += 1
        self._pacer.reported(now_s)
        self._agree(rank, report)
        if self.control_loop.iteration > self._sampled:
            self._sampled = self.control_loop.iteration
            self.journal.sample(self.job.id, self.control_loop)

    # -- the switch

    def arrival(self, arrival: Arrival) -> None:
        if self.started:
            self.control_loop.measurements.arrival(arrival, self.clock())

    def _found(self, found: Found | None) -> None:
        self.life.found(found, self.clock())
        self.version += 1

    def _lost(self, why: str) -> None:
        """Recover from the loss of the job's slots."""
        self.life.lost(why, self.clock())
        self.version += 1

    # -- k

    def look(self) -> None:
        """Decide on k, if a decision is due and the pacer allows it."""
        if self._pacer.now(self.clock()):
            self._decide()

    def _decide(self) -> None:
        """Decide on k, if a decision is due."""
        begin_s = self.clock()
        if self.job_state.phase is not Phase.RUNNING or not self.control_loop.due(begin_s):
            return
        self._apply(self.control_loop.choose(begin_s))
        self._pacer.decided(begin_s, self.clock())
        self._tell_links()
        self.version += 1

    def _tell_links(self) -> None:
        """Send the workers the news of their links."""
        for rank, link in self._links.changes(self.control_loop):
            self.members.seats[rank].send(messages.link(link))
        self._set_followers()

    def _set_followers(self) -> None:
        """Have the switch send no results to the workers that get them from a peer."""
        if self._links.followers != self.slots.followers:
            self.slots.followers = self._links.followers
            self._wanted.set()

    def set_objective(self, text: str, *, planned: bool = False) -> None:
        """Follow another objective, set by an event (planned) or an operator; ConfigError says what must hold.

        A module:Name must be in the job's configuration, so that no remote caller can import a module.
        """
        check_objective(text, self.job.workers, "objective")
        if MODULE.fullmatch(text) and text not in self.objectives:
            raise ConfigError(
                f"objective must be a module:Name that the job's configuration names, got {text!r}"
                " (run.trials, policy.objective, event.objective)"
            )
        change = self.control_loop.set_objective(text, self.clock())
        _LOG.info("job %d: objective: %s", self.job.id, text)
        self.journal.objective(self.job.id, self.control_loop, planned=planned)
        self.version += 1
        self._apply(change)

    async def watch(self) -> None:
        """Check periodically for silent workers, due decisions and long waits, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self.clock()
            self.life.tick(now_s)
            self.look()
            self.version += self.waiting.look(now_s)

    async def carry(self) -> None:
        """Bring generations and k to the switch, then tell the workers, until cancelled. Skip a k that is outdated."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            k = self.control_loop.k
            try:
                if self.job_state.to_admit:
                    await self._admit(k)
                else:
                    await self.slots.set_k(k)
            except PushError as error:
                self._refused(k, str(error))

    def _refused(self, k: int, why: str) -> None:
        """Log why a k was refused, each reason once, and try again later. The last k stays in force."""
        if why != self.slots.refusal:
            _LOG.error("job %d: k = %d was not pushed, k = %d stays: %s", self.job.id, k, self.slots.in_force, why)
        self.slots.refusal = why
        self.version += 1
        asyncio.get_running_loop().call_later(AGAIN_S, self._wanted.set)

    def _announce_k(self, k: int) -> None:
        """Send the workers the k that the switch has just confirmed."""
        number = self.agreement.confirmed(k)
        self.version += 1
        self.members.broadcast(messages.decision(k, number, self.control_loop.late_policy))

    def _agree(self, rank: int, report: pb.Report) -> None:
        """Pass the part of a report that concerns k to `agreement`. Write to the journal from which iteration on k is
        certain."""
        said = AnnouncedK(
            iteration=report.iteration, decision=report.decision, least=report.k_least, most=report.k_most
        )
        measurements, live = self.control_loop.measurements, self.control_loop.live
        reached = dict(enumerate(np.where(live, 0, measurements.reached).tolist()))
        settled = self.slots.in_force == self.control_loop.k == self.slots.k
        if self.agreement.report(rank, said, reached, settled=settled):
            self.journal.agreed(self.job.id, self.agreement)

    async def _admit(self, k: int) -> None:
        """Have the switch admit the new generation. If the connection breaks, the next connection finds out which
        generation the switch has."""
        generation, self.job_state.to_admit = self.job_state.to_admit, 0
        try:
            await self.slots.admit(generation, k)
        finally:
            self.life.admitted(generation, self.clock())
            self.version += 1
            if self.control_loop.k != k:
                self._wanted.set()

    def _apply(self, change: Change | None) -> None:
        """Log a change of k, write it to the journal, and have it carried out."""
        self.journal.fault(self.job.id, self.control_loop)
        if change is None:
            return
        _LOG.info(
            "job %d: iteration %d: k %d -> %d (%s)",
            self.job.id, change.iteration, change.previous_k, change.k, change.reason,
        )  # fmt: skip
        self.journal.decision(self.job.id, self.control_loop, change)
        if change.k == change.previous_k:
            told = messages.decision(self.slots.in_force, self.agreement.number, self.control_loop.late_policy)
            self.members.broadcast(told)
        self._wanted.set()
