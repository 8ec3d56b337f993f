"""A job's state: its phase, generation and members, and the steps that several modules use.

WAITING --enough fresh workers--> OPENING --generation in the switch--> RUNNING --all have finished--> OVER
   |                                                                    ^    |
   | a worker is training already, and the switch                       |    | the switch has lost the slots
   |- has its generation: continue with that ---------------------------'    v
   '- does not have it --> GATHERING --all are back, or GRACE_S--> REGROUPING --all have answered--> RUNNING

No I/O: `to_admit` has the generation for the switch, the outboxes have the workers' messages.
"""

import enum
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kofn_common import wall_clock
from kofn_controller.job import messages
from kofn_controller.job.agreement import Agreement
from kofn_controller.job.checkpoints import Checkpoints
from kofn_controller.job.members import Members, Seat, SeatState
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.policy.control_loop import Change, ControlLoop

_LOG = logging.getLogger(__name__)

GRACE_S = 5.0
"""Time for which a job waits for workers that may be training before it continues without them."""


class Phase(enum.StrEnum):
    """The phases of a job, in the picture above."""

    WAITING = "waiting"
    OPENING = "opening"
    RUNNING = "running"
    GATHERING = "gathering"
    REGROUPING = "regrouping"
    OVER = "over"


@dataclass(slots=True, kw_only=True)
class JobState:
    """Phase, generation and members of one job."""

    members: Members
    control_loop: ControlLoop
    slots: Slots
    agreement: Agreement
    start_workers: int
    apply: Callable[[Change | None], None]  # carries out a change of k
    wake: Callable[[], None]  # called when `to_admit` is set
    phase: Phase = Phase.WAITING
    generation: int = 0
    settled: int = (
        0  # the latest generation that workers trained in: a worker of an older generation cannot join a regroup
    )
    to_admit: int = 0  # a generation that the switch must admit; `Lifecycle.admitted` follows
    since_s: float = field(default_factory=time.monotonic)  # start of the phase
    quiet_until_s: float = 0.0  # until then a worker that is training may come back
    checkpoints: Checkpoints = field(init=False)

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(members=self.members, control_loop=self.control_loop)

    @property
    def job(self) -> int:
        return self.members.job

    @property
    def started(self) -> bool:
        """Whether workers are or were training."""
        return self.phase not in (Phase.WAITING, Phase.OPENING)

    def enter(self, phase: Phase, now_s: float) -> None:
        self.phase, self.since_s = phase, now_s

    def restart(self, seats: Sequence[Seat], now_s: float) -> None:
        """Begin with these workers, or resume at their checkpoint."""
        self.control_loop.restart(seat.rank for seat in seats)
        self.control_loop.measurements.begin(now_s)
        for seat in self.members.seats:
            seat.took_part = False
        self.checkpoints.begin(seats, now_s)

    def admit(self) -> None:
        """Have the switch admit the present generation."""
        self.to_admit = self.generation
        self.wake()

    def welcome(self, seat: Seat, generation: int, *, running: bool = True) -> None:
        """Send the first message of a stream; a worker welcomed to a running job is live once it is Ready."""
        seat.state = SeatState.JOINING if running else SeatState.TRAINING
        seat.current = seat.current or not running
        seat.send(
            messages.welcome(
                workers=self.members.workers,
                k=self.slots.in_force or self.control_loop.k,
                first_iteration=1 + (self.control_loop.iteration if running else self.checkpoints.resumed),
                peers=self.members.peers(),
                generation=generation,
                running=running,
                checkpoint=self.checkpoints.ledger_for(seat),
                decision=self.agreement.number,
                late_policy=self.control_loop.late_policy,
            )
        )

    def worker_left(self, seat: Seat, words: str, now_s: float) -> None:
        """Remove a worker from the live workers, and let the control loop choose k for the rest."""
        if self.control_loop.live[seat.rank] and self.started:
            level = logging.INFO if seat.finished else logging.WARNING
            _LOG.log(level, "job %d: worker %d %s", self.job, seat.rank, words)
            self.apply(self.control_loop.worker_left(seat.rank, words, now_s))

    def next_generation(self) -> int:
        """Return the Unix time in seconds, or the number after the highest known generation if that is more."""
        known = [self.generation, self.slots.latest, *(seat.hello.generation for seat in self.members.attached)]
        return max(int(wall_clock.now()), max(known) + 1)
