"""The members of a job over time: the start, workers that join or rejoin a running job, the end.

`state` has the phases, `recovery` takes over after a restart of the switch or the controller.
"""

import logging
from dataclasses import dataclass, field

import grpc

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.errors import AttachError
from kofn_controller.job import messages, recovery, state
from kofn_controller.job.members import WELCOMED, Seat, SeatState, Stream
from kofn_controller.job.recovery import Recovery
from kofn_controller.job.state import JobState, Phase
from kofn_controller.p4runtime.entries import Found

_LOG = logging.getLogger(__name__)

GOALS_REACHED = ("target", "iterations", "diverged")
"""Reasons of Finished that all workers reach in the same iteration, so that no worker has to continue alone."""


@dataclass(slots=True, kw_only=True)
class Lifecycle:
    """One job's life, driven by its workers, by the switch, and by time (`tick`)."""

    job_state: JobState
    recovery: Recovery = field(init=False)

    def __post_init__(self) -> None:
        self.recovery = Recovery(job_state=self.job_state)

    # -- what workers do

    def attach(self, hello: pb.Hello, now_s: float) -> Stream:
        """Give a worker its seat, and welcome the worker as soon as it may take part. Raise AttachError if it may never
        take part."""
        job = self.job_state
        if job.phase is Phase.OVER and not hello.iteration:
            message = f"job {job.job} is over: worker {hello.rank} cannot join any more"
            raise AttachError(grpc.StatusCode.FAILED_PRECONDITION, message)
        running = bool(job.members.running)
        job.checkpoints.attach(hello)
        stream, replaced = job.members.attach(hello)
        seat = job.members.seats[stream.rank]
        if replaced:
            self._lose(seat, "attached again", now_s)
            self._await_return(running, now_s)
        seat.state, seat.current = SeatState.ATTACHED, bool(hello.iteration)
        self._place(seat, now_s)
        self._start_if_enough(now_s)
        self._tell_peers(but=seat)
        return stream

    def ready(self, rank: int, iteration: int, now_s: float) -> None:
        """Let a joining worker take part from this iteration on, because it now has a peer's parameters."""
        job, seat = self.job_state, self.job_state.members.seats[rank]
        seat.took_part = True
        if seat.state is not SeatState.JOINING:
            return  # a worker that started with the others takes part already
        seat.state, seat.current = SeatState.TRAINING, True
        if job.control_loop.live[rank]:
            job.control_loop.measurements.join(rank, now_s, iteration)
            return
        words = "is back" if seat.attachments > 1 else "has joined"
        _LOG.info("job %d: worker %d %s, in iteration %d", job.job, rank, words, iteration)
        job.apply(job.control_loop.worker_joined(rank, words, now_s, iteration))

    def finish(self, rank: int, reason: str, now_s: float) -> None:
        """Note that a worker has finished, and stop the job if all workers have."""
        job, seat = self.job_state, self.job_state.members.seats[rank]
        if seat.state is SeatState.ATTACHED and not seat.current:
            return  # the worker has not begun
        seat.finished, seat.state = reason or "finished", SeatState.FINISHED
        _LOG.info("job %d: worker %d finished: %s", job.job, rank, seat.finished)
        if job.phase is Phase.OVER:
            seat.send(messages.stop(reason))
            return
        self.recovery.gone(rank, now_s)
        if not self._stop_if_done(now_s) and reason not in GOALS_REACHED:
            job.worker_left(seat, f"finished ({reason})", now_s)

    def leave(self, stream: Stream, now_s: float) -> None:
        """Note that a worker's stream has ended. Before Stop the worker is lost, unless a newer stream replaced it."""
        job = self.job_state
        running = bool(job.members.running)
        seat = job.members.leave(stream)
        if seat is None or job.phase is Phase.OVER:
            return
        if not job.started:
            _LOG.warning("job %d: worker %d left before the start", job.job, seat.rank)
            seat.state = SeatState.ABSENT
            return
        self._lose(seat, f"finished ({seat.finished}) and left" if seat.finished else "lost", now_s)
        self._await_return(running, now_s)
        self._tell_peers()
        self._stop_if_done(now_s)

    # -- what the switch says

    def found(self, found: Found | None, now_s: float) -> None:
        """Take over the switch's entry of a job that this controller has not started: the job's workers may be
        training."""
        if found is not None and self.job_state.phase is Phase.WAITING:
            self.job_state.quiet_until_s = now_s + state.GRACE_S

    def lost(self, why: str, now_s: float) -> None:
        """Have the switch admit a new generation, or regroup the workers, because the admitted generation cannot
        continue."""
        if self.job_state.phase is Phase.OVER:
            return
        _LOG.warning("job %d: %s", self.job_state.job, why)
        if self.job_state.phase is Phase.OPENING:
            self._open(now_s)
        else:
            self.recovery.begin(now_s)

    def slot_ahead(self, rank: int, ahead: pb.SlotAhead, now_s: float) -> None:
        """Regroup the workers, because a slot of this generation has a later block than any worker; no sum is lost."""
        if self.job_state.phase is Phase.RUNNING and ahead.generation == self.job_state.generation:
            block = f"block {ahead.block} of iteration {ahead.iteration}"
            self.lost(
                f"the slot of {block}, which no worker has finished, has a later block (reported by worker {rank}):"
                " a damaged or forged packet has occupied the slot, or the workers that had the result are gone",
                now_s,
            )

    def admitted(self, generation: int, now_s: float) -> None:
        """Continue, because the switch admits the packets of a generation, or will admit them once it is back."""
        if generation != self.job_state.generation:
            return  # a newer generation has replaced this one
        if self.job_state.phase is Phase.OPENING:
            self._begin(now_s)
        else:
            self.recovery.admitted(now_s)

    def tick(self, now_s: float) -> None:
        """Do what depends on time: end waits that took too long, welcome or start waiting workers."""
        job = self.job_state
        if job.phase is Phase.GATHERING:
            self.recovery.gather(now_s)
        for rank in self.recovery.overdue(now_s):
            words = f"worker {rank} of job {job.job} has not answered Regroup for {recovery.ANSWER_S:g} s"
            self._end(job.members.seats[rank], words, now_s)
        if self.recovery.grace_is_over(now_s):
            self._lose_absent(now_s)
            self._stop_if_done(now_s)
        if job.phase in (Phase.WAITING, Phase.RUNNING):
            self._place_waiting(now_s)
        self._start_if_enough(now_s)

    # -- start

    def _place(self, seat: Seat, now_s: float) -> None:
        """Adopt, regroup or welcome an attached worker, according to the phase; otherwise it waits."""
        job = self.job_state
        if job.phase is Phase.WAITING and seat.current:
            self.recovery.adopt(seat, now_s)
        seat.current = seat.current and seat.hello.generation >= job.settled
        match job.phase:
            case Phase.RUNNING | Phase.REGROUPING if seat.current and seat.hello.generation > job.generation:
                job.welcome(seat, seat.hello.generation)
                self.recovery.begin(now_s)
            case Phase.REGROUPING if seat.current:
                self.recovery.join(seat)
            case Phase.RUNNING if job.members.sources:
                job.welcome(seat, job.generation)
                if seat.hello.generation >= job.settled:  # the worker may have answered a Regroup and missed the Resume
                    seat.send(messages.resume(job.generation))
            case Phase.OVER:
                job.welcome(seat, job.generation)

    def _place_waiting(self, now_s: float) -> None:
        """Place the waiting workers again, because the job has changed."""
        for seat in self.job_state.members.attached:
            if seat.state is SeatState.ATTACHED:
                self._place(seat, now_s)

    def _start_if_enough(self, now_s: float) -> None:
        """Start with the present workers, unless a worker that is training could still come back."""
        job = self.job_state
        if job.phase not in (Phase.WAITING, Phase.GATHERING, Phase.RUNNING) or job.members.sources:
            return
        if now_s >= job.quiet_until_s:
            self._end_joining(now_s)
        here = len(job.members.fresh)
        enough = max(min(job.start_workers, job.checkpoints.expected), 1)
        if here == job.members.workers or (here >= enough and now_s >= job.quiet_until_s):
            self._open(now_s)

    def _open(self, now_s: float) -> None:
        """Have the switch admit a new generation; `_begin` follows."""
        job = self.job_state
        job.generation = job.next_generation()
        job.restart(job.members.fresh, now_s)
        job.enter(Phase.OPENING, now_s)
        self._end_joining(now_s)
        job.admit()

    def _begin(self, now_s: float) -> None:
        """Start all waiting workers together."""
        job, seats = self.job_state, self.job_state.members.fresh
        if not seats:
            job.enter(Phase.WAITING, now_s)
            return
        job.restart(seats, now_s)
        job.settled, self.recovery.adopted = job.generation, False
        job.enter(Phase.RUNNING, now_s)
        for seat in seats:
            job.welcome(seat, job.generation, running=False)
        _LOG.info(
            "job %d: %d of %d workers are attached: start with k = %d, generation %d",
            job.job, len(seats), job.members.workers, job.control_loop.k, job.generation,
        )  # fmt: skip
        self._place_waiting(now_s)

    # -- end

    def _stop_if_done(self, now_s: float) -> bool:
        """Tell all workers to stop once every attached worker has finished and no absent worker may come back."""
        job = self.job_state
        here, seats = job.members.attached, job.members.seats
        away = self.recovery.adopted or (not here and any(seat.state is SeatState.LOST for seat in seats))
        reasons = sorted({seat.finished for seat in seats if seat.finished})
        done = reasons and not away and all(seat.finished for seat in here)
        if not done or not job.started or job.phase is Phase.OVER:
            return False
        job.enter(Phase.OVER, now_s)
        job.members.broadcast(messages.stop(", ".join(reasons)))
        _LOG.info("job %d: stop: %s", job.job, ", ".join(reasons))
        return True

    # -- parts

    def _lose(self, seat: Seat, words: str, now_s: float) -> None:
        """Mark a worker as lost, unless it has finished, and remove it from the live workers."""
        job = self.job_state
        seat.state = seat.state if seat.finished else SeatState.LOST
        job.worker_left(seat, words, now_s)
        self.recovery.gone(seat.rank, now_s)

    def _await_return(self, running: bool, now_s: float) -> None:
        """If no worker is training any more, give the last worker GRACE_S to come back."""
        if running and not self.job_state.members.running:
            self.job_state.quiet_until_s = now_s + state.GRACE_S

    def _lose_absent(self, now_s: float) -> None:
        """Mark the workers that are still absent as lost."""
        for seat in self.job_state.members.seats:
            if seat.stream is None:
                self._lose(seat, "is not back", now_s)
            elif seat.state in (SeatState.ATTACHED, SeatState.JOINING):
                self.job_state.worker_left(seat, "is not ready", now_s)

    def _end_joining(self, now_s: float) -> None:
        """Release the joining workers, because no peer has parameters: they may attach again and start with the
        others."""
        for seat in self.job_state.members.attached:
            if seat.state is SeatState.JOINING:
                self._end(seat, f"no worker has parameters of job {self.job_state.job}: it restarts", now_s)

    def _end(self, seat: Seat, words: str, now_s: float) -> None:
        """End a worker's stream with a reason; the worker may attach again."""
        stream = seat.stream
        if stream is not None:
            stream.outbox.put_nowait(AttachError(grpc.StatusCode.UNAVAILABLE, words))
            self.leave(stream, now_s)

    def _tell_peers(self, but: Seat | None = None) -> None:
        """Send the list of attached workers to all welcomed workers, except `but`, whose Welcome has the list."""
        message = messages.peers(self.job_state.members.peers())
        for seat in self.job_state.members.attached:
            if seat.state in WELCOMED and seat is not but:
                seat.send(message)
