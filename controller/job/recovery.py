"""How a job goes on after a restart of the switch or the controller.

A controller that finds workers training goes on with the k and the generation that the switch has. If the switch does
not have the workers' generation, its slots are lost: a worker that holds the only copy of a result must be heard before
a slot may sum that block again. So the controller halts all workers (Regroup), admits a new generation when all have
answered, and then the workers fetch each other's results and go on (Resume). Workers that are lost meanwhile are not
waited for.
"""

import logging
from dataclasses import dataclass, field

from kofn.controller.job import messages, state
from kofn.controller.job.members import WELCOMED, Seat, SeatState
from kofn.controller.job.state import JobState, Phase
from kofn.results.ranks import name_workers

_LOG = logging.getLogger(__name__)

ANSWER_S = 30.0
"""How long a worker has to answer a Regroup. One that does not is given up, and may attach again."""


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Adoption of a job that goes on, and regroups."""

    job_state: JobState
    regroups: int = 0
    waiting: set[int] = field(default_factory=set)  # the workers that have not answered the present Regroup
    adopted: bool = False  # this controller came later: workers not back after the grace are lost
    _admitted: bool = False  # the switch takes packets of the new generation

    # -- adoption

    def adopt(self, seat: Seat, now_s: float) -> None:
        """The first worker that is training already: go on with what the switch has, or bring all together first."""
        job, found = self.job_state, self.job_state.slots.found
        job.quiet_until_s = now_s + state.GRACE_S
        if found is None or found.generation != seat.hello.generation:
            _LOG.warning(
                "job %d goes on already (worker %d is in iteration %d), but the switch has not its generation %d",
                job.job, seat.rank, seat.hello.iteration, seat.hello.generation,
            )  # fmt: skip
            job.enter(Phase.GATHERING, now_s)
            return
        job.slots.adopt()
        job.generation = job.settled = found.generation
        job.control_loop.restart(range(job.members.workers))
        job.control_loop.k = found.k
        self.adopted = True
        job.enter(Phase.RUNNING, now_s)
        _LOG.info("job %d goes on already: k = %d, generation %d as in the switch", job.job, found.k, found.generation)

    def grace_is_over(self, now_s: float) -> bool:
        """Return True once, when the grace is over: workers that were to be adopted and are absent are then lost."""
        over = self.adopted and self.job_state.phase is Phase.RUNNING and now_s >= self.job_state.quiet_until_s
        self.adopted = self.adopted and not over
        return over

    def gather(self, now_s: float) -> None:
        """Regroup when all are back, or enough time has passed."""
        job = self.job_state
        here, running = job.members.attached, job.members.running
        if not running or (len(here) < job.members.workers and now_s < job.quiet_until_s):
            return
        back = [seat for seat in running if seat.state is SeatState.ATTACHED]
        job.settled = max([job.settled, *(seat.hello.generation for seat in back)])
        for seat in back:
            seat.current = seat.hello.generation == job.settled
            if seat.current:
                job.welcome(seat, job.settled)
        if not job.control_loop.iteration:  # another controller saw the job's beginning
            job.control_loop.restart(seat.rank for seat in job.members.running)
        self.begin(now_s)

    # -- regroup

    def begin(self, now_s: float) -> None:
        """Everyone stops before anything is summed anew; a regroup that is going on starts over."""
        job = self.job_state
        job.generation, job.to_admit = job.next_generation(), 0
        self.waiting = {
            seat.rank for seat in job.members.attached if seat.state in (SeatState.JOINING, SeatState.TRAINING)
        }
        self._admitted = False
        if not any(
            seat.state in WELCOMED for seat in job.members.running
        ):  # no worker has the results: one that has may come back
            job.quiet_until_s = now_s + state.GRACE_S
            job.enter(Phase.GATHERING, now_s)
            return
        job.enter(Phase.REGROUPING, now_s)
        job.members.broadcast(messages.regroup(job.generation))
        _LOG.info("job %d: regroup with generation %d: %s", job.job, job.generation, name_workers(self.waiting))

    def join(self, seat: Seat) -> None:
        """One more worker has to answer: it comes back with results that it may be the only one to have."""
        self.job_state.welcome(seat, seat.hello.generation)
        seat.send(messages.regroup(self.job_state.generation))
        self.waiting.add(seat.rank)

    def answer(self, rank: int, generation: int, now_s: float) -> None:
        """A worker's Regrouped; one for an earlier generation says nothing about this one."""
        if generation == self.job_state.generation:
            self.waiting.discard(rank)
            self._try_resume(now_s)

    def gone(self, rank: int, now_s: float) -> None:
        """A worker has left, or needs no more results."""
        self.waiting.discard(rank)
        self._try_resume(now_s)

    def overdue(self, now_s: float) -> list[int]:
        """Those that have not answered for too long."""
        late = self.job_state.phase is Phase.REGROUPING and now_s >= self.job_state.since_s + ANSWER_S
        return sorted(self.waiting) if late else []

    def admitted(self, now_s: float) -> None:
        """The switch lets the new generation in."""
        self._admitted = True
        self._try_resume(now_s)

    def _try_resume(self, now_s: float) -> None:
        """Go on when everyone has answered: first the switch, then the workers."""
        if self.job_state.phase is not Phase.REGROUPING:
            return
        if not self.job_state.members.running:
            self.begin(now_s)  # no worker is left that could go on: gather
        elif self.waiting:
            return
        elif self._admitted:
            self._resume(now_s)
        else:
            self.job_state.admit()

    def _resume(self, now_s: float) -> None:
        job = self.job_state
        job.settled = job.generation
        self.regroups += 1
        job.enter(Phase.RUNNING, now_s)
        job.members.broadcast(messages.resume(job.generation))
        _LOG.info("job %d: resumed with generation %d", job.job, job.generation)
