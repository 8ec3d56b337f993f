"""Workers attach, answer, die and rejoin in any order, and the switch restarts: no worker is left out, no step is too
early.

A session's course without gRPC and without a switch, against workers that behave as docs/explanation/control.md says,
and a switch that knows one generation or none.
"""

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kofn_common.config.job import JobSection
from kofn_common.config.policy import PolicySection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.errors import AttachError
from kofn_controller.job.agreement import Agreement
from kofn_controller.job.lifecycle import Lifecycle
from kofn_controller.job.members import Members, SeatState, Stream
from kofn_controller.job.state import JobState, Phase
from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.policy.control_loop import ControlLoop
from tests.controller.harness import star

pytestmark = pytest.mark.slow

WORKERS = 3
BEGIN = int(time.time()) + 3600
"""The first generation; the clock does not matter."""

RANKS = st.integers(0, WORKERS - 1)


@dataclass(kw_only=True)
class Process:
    """A worker: its state, and the messages that it owes the controller."""

    rank: int
    iteration: int = 0
    generation: int = 0
    halted: bool = False
    welcomed: bool = False
    stream: Stream | None = None
    owed: list[pb.WorkerMessage] = field(default_factory=list)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        job = JobSection(workers=WORKERS, start_workers=2)
        self.now_s = 1000.0
        self.entry: int | None = None  # the generation that the switch admits
        self.let_in: list[int] = []
        self.regroups = 0
        slots = Slots(layout=SlotLayout(job=job, hosts=star(WORKERS)), k=WORKERS, latest=BEGIN)
        self.job_state = JobState(
            members=Members(job=1, workers=WORKERS),
            control_loop=ControlLoop(workers=WORKERS, policy=PolicySection()),
            slots=slots,
            agreement=Agreement(),
            start_workers=2,
            apply=lambda change: None,
            wake=lambda: None,
        )
        self.life = Lifecycle(job_state=self.job_state)
        self.processes = [Process(rank=rank) for rank in range(WORKERS)]

    # -- workers

    @rule(rank=RANKS)
    def attach(self, rank: int) -> None:
        """Attach a worker, perhaps again while its older stream is open."""
        process = self.processes[rank]
        hello = pb.Hello(
            job=1,
            rank=rank,
            peer_address=f"10.9.1.{rank}:1",
            iteration=process.iteration,
            generation=process.generation,
        )
        process.stream, process.owed, process.welcomed = self.life.attach(hello, self.now_s), [], False

    @rule(rank=RANKS)
    def break_connection(self, rank: int) -> None:
        process = self.processes[rank]
        if process.stream is not None:
            stream, process.stream = process.stream, None
            self.life.leave(stream, self.now_s)

    @rule(rank=RANKS)
    def kill(self, rank: int) -> None:
        self.break_connection(rank)
        self.processes[rank] = Process(rank=rank)

    @rule(rank=RANKS)
    def listen(self, rank: int) -> None:
        self.hear(rank)

    @rule(rank=RANKS)
    def speak(self, rank: int) -> None:
        self.answer(rank)

    def hear(self, rank: int) -> bool:
        """Take the next message."""
        process = self.processes[rank]
        if process.stream is None or process.stream.outbox.empty():
            return False
        message = process.stream.outbox.get_nowait()
        if isinstance(message, AttachError):
            process.stream = None
            return True
        kind = str(message.WhichOneof("message"))
        assert process.welcomed or kind == "welcome", "the first message must be the Welcome"
        getattr(self, f"_hear_{kind}")(process, getattr(message, kind))
        return True

    def _hear_welcome(self, process: Process, welcome: pb.Welcome) -> None:
        assert not process.welcomed
        assert welcome.running or welcome.generation in self.let_in
        process.welcomed = True
        if not welcome.running:
            process.iteration = 1
        process.halted = process.halted and welcome.generation <= process.generation
        process.generation = max(process.generation, welcome.generation)
        process.owed.append(pb.WorkerMessage(ready=pb.Ready()))

    def _hear_regroup(self, process: Process, regroup: pb.Regroup) -> None:
        assert regroup.generation >= process.generation  # equal if the worker has attached again meanwhile
        process.generation, process.halted = regroup.generation, True
        process.owed.append(pb.WorkerMessage(regrouped=pb.Regrouped(generation=regroup.generation)))

    def _hear_resume(self, process: Process, resume: pb.Resume) -> None:
        assert resume.generation in self.let_in, "the switch must admit the generation before the workers resume"
        if resume.generation == process.generation:
            process.halted = False

    def _hear_peers(self, process: Process, peers: pb.Peers) -> None:
        assert (
            process.rank in [peer.rank for peer in peers.peers] or not self.job_state.members.seats[process.rank].stream
        )

    def answer(self, rank: int) -> bool:
        """Send the first owed message that can be sent; a worker without parameters waits for a peer that has them."""
        process = self.processes[rank]
        if process.stream is None:
            return False
        process.iteration = process.iteration or self._peers_iteration(process)
        owed = [message for message in process.owed if process.iteration or not message.HasField("ready")]
        if not owed:
            return False
        process.owed.remove(owed[0])
        if owed[0].HasField("ready"):
            self.life.ready(rank, process.iteration, self.now_s)
        else:
            self.life.recovery.answer(rank, owed[0].regrouped.generation, self.now_s)
        return True

    def _peers_iteration(self, process: Process) -> int:
        """Return the iteration of a peer that has the parameters; 0 if none has, or if the worker
        is not welcome yet.
        """
        return max(other.iteration for other in self.processes) if process.welcomed else 0

    # -- the switch

    @rule()
    def restart_switch(self) -> None:
        self.entry = None
        slots = self.job_state.slots
        if slots.generation:
            slots.generation = 0
            self.life.lost("the switch was restarted", self.now_s)

    @precondition(lambda self: self.job_state.to_admit)
    @rule()
    def let_generation_in(self) -> None:
        generation, self.job_state.to_admit = self.job_state.to_admit, 0
        assert not self.let_in or generation > self.let_in[-1] or generation == self.entry
        self.job_state.slots.generation = self.entry = generation
        self.let_in.append(generation)
        self.life.admitted(generation, self.now_s)

    # -- time

    @rule(passed_s=st.sampled_from([0.02, 1.0, 6.0, 31.0]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.life.tick(self.now_s)

    # -- invariants

    @invariant()
    def k_is_possible(self) -> None:
        assert 1 <= self.job_state.control_loop.k <= max(1, int(self.job_state.control_loop.live.sum()))

    @invariant()
    def no_worker_continues_before_all_have_answered(self) -> None:
        """A generation may be admitted before a rejoining worker is asked, as long as no worker sends."""
        if self.life.recovery.regroups > self.regroups:
            self.regroups = self.life.recovery.regroups
            for seat in self.job_state.members.running:
                assert self.processes[seat.rank].generation >= self.job_state.generation

    @invariant()
    def who_counts_is_here(self) -> None:
        if self.job_state.phase in (Phase.RUNNING, Phase.REGROUPING):
            for seat in self.job_state.members.seats:
                assert seat.stream is not None or not self.job_state.control_loop.live[seat.rank]

    def teardown(self) -> None:
        """Let all workers attach and answer without further faults: all train, in one generation."""
        for _ in range(30):
            for rank in range(WORKERS):
                while self.hear(rank) or self.answer(rank):
                    continue
                if self.processes[rank].stream is None:
                    self.attach(rank)
            if self.job_state.to_admit:
                self.let_generation_in()
            self.wait(1.0)
        assert self.job_state.phase is Phase.RUNNING
        assert [seat.state for seat in self.job_state.members.seats] == [SeatState.TRAINING] * WORKERS
        assert self.job_state.control_loop.live.all()
        for process in self.processes:
            assert (process.generation, process.halted) == (self.entry, False)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(settings.default, max_examples=max(150, settings.default.max_examples // 2))
