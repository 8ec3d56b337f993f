"""A job's course: from the first worker that attaches to the last one's end, whatever is restarted meanwhile.

    WAITING --enough fresh workers--> OPENING --generation in the switch--> RUNNING --all have finished--> OVER
       |                                                                    ^    |
       | someone is training already,                                       |    | the switch has lost the slots
       | and the switch has its generation: go on with that -----------------'    v
       '- and it has not ---> GATHERING --all are back, or GRACE_S--> REGROUPING -> (all answered) -> RUNNING

No clock but the `now_s` that it is given by `tick`, no I/O: what is to be put into the switch stands in `to_admit`.
"""

import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from controller import messages
from controller.decide import Change, Decider
from controller.entries import Found
from controller.errors import AttachError
from controller.members import WELCOMED, Members, Seat, State, Stream, ranks
from controller.regroup import Regroup
from controller.slots import Slots
from rpc import kofn_pb2 as pb

_LOG = logging.getLogger(__name__)

FIRST_ITERATION = 1

GRACE_S = 5.0
"""How long workers that may be training are waited for before it is gone on without them."""

GOALS_REACHED = ("target", "iterations")
"""Reasons of Finished that all workers come to by themselves: no one has to go on without the others."""


class Phase(enum.StrEnum):
    """Where the job is in its course."""

    WAITING = "waiting"
    OPENING = "opening"
    RUNNING = "running"
    GATHERING = "gathering"
    REGROUPING = "regrouping"
    OVER = "over"


@dataclass(slots=True, kw_only=True)
class Lifecycle:
    """Phase, generation and members of one job; `apply` takes changes of k, `wake` says that `to_admit` is set."""

    members: Members
    decider: Decider
    slots: Slots
    start_workers: int
    apply: Callable[[Change | None], None]
    wake: Callable[[], None]
    phase: Phase = Phase.WAITING
    generation: int = 0
    settled: int = 0  # the generation that was in force last: who knows no earlier one can take part in a regroup
    regroups: int = 0
    regroup: Regroup | None = None
    to_admit: int = 0  # a generation that the switch shall let in; `admitted` then goes on
    since_s: float = field(default_factory=time.monotonic)  # of the phase
    _adopted: bool = False  # by a controller that came later: who is not back after GRACE_S is lost
    _quiet_until_s: float = 0.0  # so long somebody may come back who is training

    @property
    def started(self) -> bool:
        """Workers are training, or were."""
        return self.phase not in (Phase.WAITING, Phase.OPENING)

    # -- what workers do

    def attach(self, hello: pb.Hello, now_s: float) -> Stream:
        """Give a worker its seat and what it needs to take part; AttachError says why it cannot."""
        if self.phase is Phase.OVER and not hello.iteration:
            message = f"job {self.members.job} is over: worker {hello.rank} cannot join any more"
            raise AttachError(grpc.StatusCode.FAILED_PRECONDITION, message)
        stream, replaced = self.members.attach(hello)
        seat = self.members.seats[stream.rank]
        if replaced:
            self._lose(seat, "attached again", now_s)
        seat.state, seat.current = State.ATTACHED, bool(hello.iteration) and hello.generation >= self.settled
        self._place(seat, now_s)
        self._tell_peers(but=seat)
        return stream

    def ready(self, rank: int, iteration: int, now_s: float) -> None:
        """A worker has its parameters and takes part from this iteration on."""
        seat = self.members.seats[rank]
        if seat.state is not State.JOINING:
            return  # who started with the others takes part already
        seat.state, seat.current = State.TRAINING, True
        if self.decider.live[rank]:
            self.decider.measurements.join(rank, now_s, iteration)
            return
        words = "is back" if seat.attachments > 1 else "has joined"
        _LOG.info("job %d: worker %d %s, in iteration %d", self.members.job, rank, words, iteration)
        self.apply(self.decider.gain(rank, words, now_s, iteration))

    def regrouped(self, rank: int, generation: int, now_s: float) -> None:
        """A worker has stopped, and takes nothing of an earlier generation any more."""
        if self.regroup is not None:
            self.regroup.answer(rank, generation)
            self._try_resume(now_s)

    def finish(self, rank: int, reason: str, now_s: float) -> None:
        """A worker is done; when all are, all may stop."""
        seat = self.members.seats[rank]
        seat.finished, seat.state = reason or "finished", State.FINISHED
        _LOG.info("job %d: worker %d finished: %s", self.members.job, rank, seat.finished)
        if self.phase is Phase.OVER:
            seat.send(messages.stop(reason))
            return
        self._gone(rank, now_s)
        if not self._stop_if_done(now_s) and reason not in GOALS_REACHED and self.decider.live[rank]:
            self.apply(self.decider.lose(rank, f"finished ({reason})", now_s))

    def leave(self, stream: Stream, now_s: float) -> None:
        """A worker's stream is gone: expected after Stop, a loss before; nothing where a newer stream replaced it."""
        seat = self.members.leave(stream)
        if seat is None or self.phase is Phase.OVER:
            return
        if not self.started:
            _LOG.warning("job %d: worker %d left before the start", self.members.job, seat.rank)
            seat.state = State.ABSENT
            return
        words = f"finished ({seat.finished}) and left" if seat.finished else "lost"
        self._lose(seat, words, now_s)
        self._tell_peers()
        self._stop_if_done(now_s)

    # -- what the switch says

    def found(self, found: Found | None, now_s: float) -> None:
        """The switch is there, and this is what it has of a job that this controller has not started."""
        if found is not None and self.phase is Phase.WAITING:
            self._quiet_until_s = now_s + GRACE_S

    def lost(self, why: str, now_s: float) -> None:
        """The slots of the generation that was let in are gone."""
        if self.phase is Phase.OVER:
            return
        _LOG.warning("job %d: %s", self.members.job, why)
        if self.phase is Phase.OPENING:
            self._open(now_s)
        else:
            self._regroup(now_s)

    def admitted(self, generation: int, now_s: float) -> None:
        """The switch lets packets of a generation in, or will as soon as it is there."""
        if generation != self.generation:
            return  # it has been lost again meanwhile
        if self.phase is Phase.OPENING:
            self._begin(now_s)
        elif self.regroup is not None:
            self.regroup.admitted = True
            self._try_resume(now_s)

    def tick(self, now_s: float) -> None:
        """Whatever time alone brings about."""
        if self.phase is Phase.GATHERING:
            self._gathered(now_s)
        if self._adopted and self.phase is Phase.RUNNING and now_s >= self._quiet_until_s:
            self._adopted = False
            self._lose_absent(now_s)
            self._stop_if_done(now_s)
        self._start_if_enough(now_s)

    # -- start

    def _place(self, seat: Seat, now_s: float) -> None:
        """What a worker that has just attached is to do."""
        match self.phase:
            case Phase.WAITING if seat.current:
                self._adopt(seat, now_s)
            case Phase.RUNNING | Phase.REGROUPING if seat.current and seat.hello.generation > self.generation:
                self._welcome(seat, seat.hello.generation)
                self._regroup(now_s)
            case Phase.REGROUPING if seat.current:
                self._welcome(seat, seat.hello.generation)
                seat.send(messages.regroup(self.generation))
                assert self.regroup is not None
                self.regroup.join(seat.rank)
            case Phase.RUNNING if seat.current:
                self._welcome(seat, self.generation)
                seat.send(messages.resume(self.generation))
            case Phase.RUNNING if self.members.sources:
                self._welcome(seat, self.generation)
            case Phase.OVER:
                self._welcome(seat, self.generation)
            case _:
                self._start_if_enough(now_s)

    def _start_if_enough(self, now_s: float) -> None:
        """Start with those that are here, where nobody is training who could still come back."""
        if self.phase not in (Phase.WAITING, Phase.GATHERING, Phase.RUNNING) or self.members.sources:
            return
        here = len(self.members.fresh)
        if here == self.members.workers or (here >= self.start_workers and now_s >= self._quiet_until_s):
            self._open(now_s)

    def _open(self, now_s: float) -> None:
        """Have the switch let a new generation in; `_begin` follows."""
        self.generation = self._next_generation()
        self.decider.restart(seat.rank for seat in self.members.fresh)
        self._enter(Phase.OPENING, now_s)
        self._admit()

    def _begin(self, now_s: float) -> None:
        """Everyone who waits starts, all together."""
        seats = self.members.fresh
        if not seats:
            self._enter(Phase.WAITING, now_s)
            return
        self.decider.restart(seat.rank for seat in seats)
        self.decider.measurements.begin(now_s)
        self.settled, self._adopted = self.generation, False
        self._enter(Phase.RUNNING, now_s)
        for seat in seats:
            self._welcome(seat, self.generation, running=False)
            seat.state, seat.current = State.TRAINING, True
        _LOG.info(
            "job %d: %d of %d workers are attached: start with k = %d, generation %d",
            self.members.job, len(seats), self.members.workers, self.decider.k, self.generation,
        )  # fmt: skip
        for seat in self.members.attached:
            if seat.state is State.ATTACHED:  # it was training, in a job that has been begun anew
                seat.current = False
                self._place(seat, now_s)

    # -- adoption of a job that is going on

    def _adopt(self, seat: Seat, now_s: float) -> None:
        """The first worker that is training already: go on with what the switch has, or bring all together first."""
        found = self.slots.found
        self._quiet_until_s = now_s + GRACE_S
        if found is None or found.generation != seat.hello.generation:
            _LOG.warning(
                "job %d goes on already (worker %d is in iteration %d), but the switch has not its generation %d",
                self.members.job, seat.rank, seat.hello.iteration, seat.hello.generation,
            )  # fmt: skip
            self._enter(Phase.GATHERING, now_s)
            self._gathered(now_s)
            return
        self.slots.adopt()
        self.generation = self.settled = found.generation
        self.decider.restart(range(self.members.workers))
        self.decider.k = found.k
        self._adopted = True
        self._enter(Phase.RUNNING, now_s)
        _LOG.info(
            "job %d goes on already: k = %d, generation %d, as in the switch",
            self.members.job,
            found.k,
            found.generation,
        )
        for waiting in self.members.attached:
            self._place(waiting, now_s)

    def _gathered(self, now_s: float) -> None:
        """Regroup when all are back, or enough time has passed."""
        here = self.members.attached
        if not self.members.running or (len(here) < self.members.workers and now_s < self._quiet_until_s):
            return
        self.settled = max(seat.hello.generation for seat in self.members.running)
        for seat in here:
            seat.current = seat.current and seat.hello.generation == self.settled
            if seat.current and seat.state is State.ATTACHED:
                self._welcome(seat, self.settled)
        if not self.decider.iteration:  # another controller saw the job's beginning
            self.decider.restart(seat.rank for seat in self.members.running)
        self._regroup(now_s)

    def _lose_absent(self, now_s: float) -> None:
        """Who is not back by now is lost."""
        for seat in self.members.seats:
            if seat.stream is None:
                self._lose(seat, "is not back", now_s)
            elif seat.state is not State.TRAINING and self.decider.live[seat.rank]:
                self.apply(self.decider.lose(seat.rank, "is not ready", now_s))

    # -- regroup

    def _regroup(self, now_s: float) -> None:
        """Everyone stops before anything is summed anew."""
        self.generation, self.to_admit = self._next_generation(), 0
        waiting = {seat.rank for seat in self.members.running if seat.state in WELCOMED}
        if not waiting:
            self._quiet_until_s = now_s + GRACE_S
            self._enter(Phase.GATHERING, now_s)
            return
        self.regroup = Regroup(generation=self.generation, waiting=waiting)
        self._enter(Phase.REGROUPING, now_s)
        self.members.broadcast(messages.regroup(self.generation))
        _LOG.info("job %d: regroup with generation %d: %s", self.members.job, self.generation, ranks(waiting))

    def _try_resume(self, now_s: float) -> None:
        """Go on when everyone has answered: first the switch, then the workers."""
        if self.regroup is None or self.phase is not Phase.REGROUPING:
            return
        if self.regroup.deserted:
            self._regroup(now_s)
        elif self.regroup.complete and self.regroup.admitted:
            self._resume(now_s)
        elif self.regroup.complete:
            self._admit()

    def _resume(self, now_s: float) -> None:
        """The switch lets the new generation in: everyone goes on, and who has waited may join."""
        self.settled, self.regroup = self.generation, None
        self.regroups += 1
        self._enter(Phase.RUNNING, now_s)
        self.members.broadcast(messages.resume(self.generation))
        _LOG.info("job %d: resumed with generation %d", self.members.job, self.generation)
        for seat in self.members.fresh:
            self._place(seat, now_s)

    # -- end

    def _stop_if_done(self, now_s: float) -> bool:
        """Tell all to stop once everyone who is attached has finished."""
        here = self.members.attached
        pending = self._adopted or (any(seat.state is State.LOST for seat in self.members.seats) and not here)
        if not self.started or self.phase is Phase.OVER or pending or not all(seat.finished for seat in here):
            return False
        reasons = sorted({seat.finished for seat in self.members.seats if seat.finished})
        if not reasons:
            return False
        self._enter(Phase.OVER, now_s)
        self.members.broadcast(messages.stop(", ".join(reasons)))
        _LOG.info("job %d: stop: %s", self.members.job, ", ".join(reasons))
        return True

    # -- parts

    def _lose(self, seat: Seat, words: str, now_s: float) -> None:
        """A worker takes no part any more."""
        seat.state = seat.state if seat.finished else State.LOST
        if self.decider.live[seat.rank] and self.started:
            level = logging.INFO if seat.finished else logging.WARNING
            _LOG.log(level, "job %d: worker %d %s", self.members.job, seat.rank, words)
            self.apply(self.decider.lose(seat.rank, words, now_s))
        self._gone(seat.rank, now_s)
        if not self.members.running:
            self._quiet_until_s = max(self._quiet_until_s, now_s + GRACE_S)

    def _gone(self, rank: int, now_s: float) -> None:
        """A regroup does not wait for this worker."""
        if self.regroup is not None:
            self.regroup.gone(rank)
            self._try_resume(now_s)

    def _welcome(self, seat: Seat, generation: int, *, running: bool = True) -> None:
        """The first message of a stream."""
        seat.state = State.JOINING
        seat.send(
            messages.welcome(
                workers=self.members.workers,
                k=self.decider.k,
                first_iteration=self.decider.iteration + 1 if running else FIRST_ITERATION,
                peers=self.members.peers(),
                generation=generation,
                running=running,
            )
        )

    def _tell_peers(self, but: Seat | None = None) -> None:
        """Who is attached now, to everyone who does not know it from a Welcome of this moment."""
        told = [seat for seat in self.members.attached if seat.state in WELCOMED and seat is not but]
        message = messages.peers(self.members.peers())
        for seat in told:
            seat.send(message)

    def _next_generation(self) -> int:
        """Unix seconds, and more than every generation that anyone here knows of."""
        known = [self.generation, self.slots.latest, *(seat.hello.generation for seat in self.members.attached)]
        return max(int(time.time()), max(known) + 1)

    def _admit(self) -> None:
        """Have the generation let in."""
        self.to_admit = self.generation
        self.wake()

    def _enter(self, phase: Phase, now_s: float) -> None:
        """Another phase begins."""
        self.phase, self.since_s = phase, now_s
