"""Continues a job after a restart of the switch or the controller.

A controller that finds workers training continues with the k and the generation that the switch has. If the switch does
not have the workers' generation, it has lost the job's slots. A worker may then hold the only copy of a result, so it
must report before a slot sums that block again. The controller halts all workers (Regroup) and admits a new generation
when all have answered. The workers then fetch each other's results and continue (Resume). The controller does not wait
for workers that are lost meanwhile.
"""

import logging
from dataclasses import dataclass, field

from kofn_common.results.ranks import name_workers
from kofn_controller.job import messages, state
from kofn_controller.job.members import WELCOMED, Seat, SeatState
from kofn_controller.job.state import JobState, Phase

_LOG = logging.getLogger(__name__)

ANSWER_S = 30.0
"""Maximum time for a worker's answer to Regroup. A worker without an answer is released, and may attach again."""


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Adopts a running job, and regroups its workers."""

    job_state: JobState
    regroups: int = 0
    waiting: set[int] = field(default_factory=set)  # the workers that have not answered the present Regroup
    adopted: bool = False  # the job was adopted, and workers may still come back: they are lost after GRACE_S
    _admitted: bool = False  # the switch admits packets of the new generation

    # -- adoption

    def adopt(self, seat: Seat, now_s: float) -> None:
        """Adopt the job of a worker that is training already: continue with the switch's k and generation, or gather
        all workers if the switch does not have the worker's generation.
        """
        job, found = self.job_state, self.job_state.slots.found
        job.quiet_until_s = now_s + state.GRACE_S
        if found is None or found.generation != seat.hello.generation:
            _LOG.warning(
                "job %d is running already (worker %d is in iteration %d), but the switch does not have generation %d",
                job.job, seat.rank, seat.hello.iteration, seat.hello.generation,
            )  # fmt: skip
            job.enter(Phase.GATHERING, now_s)
            return
        job.slots.adopt()
        job.wake()  # the leaves of a tree may have other entries
        job.generation = job.settled = found.generation
        job.control_loop.restart(range(job.members.workers))
        job.control_loop.k = found.k
        self.adopted = True
        job.enter(Phase.RUNNING, now_s)
        _LOG.info(
            "job %d is running already: k = %d, generation %d as in the switch", job.job, found.k, found.generation
        )

    def grace_is_over(self, now_s: float) -> bool:
        """Return True once, when GRACE_S after an adoption is over: workers that are still absent are lost."""
        over = self.adopted and self.job_state.phase is Phase.RUNNING and now_s >= self.job_state.quiet_until_s
        self.adopted = self.adopted and not over
        return over

    def gather(self, now_s: float) -> None:
        """Regroup when all workers are back or GRACE_S is over, if a worker that has parameters is attached."""
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
        if not job.control_loop.iteration:  # this controller has seen no iteration of the job
            job.control_loop.restart(seat.rank for seat in job.members.running)
        self.begin(now_s)

    # -- regroup

    def begin(self, now_s: float) -> None:
        """Halt all workers, so that no block is summed again; a regroup in progress starts over.

        Go back to gathering if no attached worker has the results.
        """
        job = self.job_state
        job.generation, job.to_admit = job.next_generation(), 0
        self.waiting = {
            seat.rank for seat in job.members.attached if seat.state in (SeatState.JOINING, SeatState.TRAINING)
        }
        self._admitted = False
        if not any(seat.state in WELCOMED for seat in job.members.running):
            job.quiet_until_s = now_s + state.GRACE_S
            job.enter(Phase.GATHERING, now_s)
            return
        job.enter(Phase.REGROUPING, now_s)
        job.members.broadcast(messages.regroup(job.generation))
        _LOG.info("job %d: regroup with generation %d: %s", job.job, job.generation, name_workers(self.waiting))

    def join(self, seat: Seat) -> None:
        """Let a worker that comes back answer the Regroup, too: it may have the only copy of a result."""
        self.job_state.welcome(seat, seat.hello.generation)
        seat.send(messages.regroup(self.job_state.generation))
        self.waiting.add(seat.rank)

    def answer(self, rank: int, generation: int, now_s: float) -> None:
        """Take a worker's Regrouped, unless it is for an earlier generation."""
        if generation == self.job_state.generation:
            self.waiting.discard(rank)
            self._try_resume(now_s)

    def gone(self, rank: int, now_s: float) -> None:
        """Stop waiting for a worker that has left or finished."""
        self.waiting.discard(rank)
        self._try_resume(now_s)

    def overdue(self, now_s: float) -> list[int]:
        """Return the workers that have not answered within ANSWER_S."""
        late = self.job_state.phase is Phase.REGROUPING and now_s >= self.job_state.since_s + ANSWER_S
        return sorted(self.waiting) if late else []

    def admitted(self, now_s: float) -> None:
        """Note that the switch admits the new generation."""
        self._admitted = True
        self._try_resume(now_s)

    def _try_resume(self, now_s: float) -> None:
        """When all workers have answered, admit the generation to the switch, then resume the workers."""
        if self.job_state.phase is not Phase.REGROUPING:
            return
        if not self.job_state.members.running:
            self.begin(now_s)  # no worker is left that could continue: gather
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
