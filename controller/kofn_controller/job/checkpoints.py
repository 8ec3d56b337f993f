"""Decides when a checkpoint of a job is complete, and at which checkpoint a job resumes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import grpc

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.errors import AttachError
from kofn_controller.job import messages
from kofn_controller.job.members import Members, Seat, SeatState
from kofn_controller.policy.control_loop import ControlLoop
from kofn_controller.policy.control_state import resume, state_of

KEPT = 4
"""Maximum number of checkpoints of which only some workers have saved their parts."""


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one job."""

    members: Members
    control_loop: ControlLoop
    resumed: int = 0  # the iteration of the checkpoint at which the job has begun; 0: without a checkpoint
    _absent: set[int] = field(default_factory=set)  # ranks without a ledger in that checkpoint
    _saved: dict[int, dict[int, Mapping[str, str]]] = field(default_factory=dict)  # saved files by iteration and rank

    # -- resuming

    def attach(self, hello: pb.Hello) -> None:
        """Check a new worker's checkpoint; AttachError if another new worker has a newer checkpoint.

        New workers with an older checkpoint must attach again; they then look for the newer checkpoint.
        """
        mine = hello.checkpoint
        if hello.iteration:
            return
        others = [seat for seat in self.members.fresh if seat.rank != hello.rank]
        for seat in others:
            if mine < (theirs := seat.hello.checkpoint):
                raise AttachError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"all workers must resume at the same checkpoint: worker {hello.rank} has {_named(mine)},"
                    f" worker {seat.rank} has {_named(theirs)}; do they read the same folder?",
                )
        for seat in others:
            if seat.hello.checkpoint < mine and seat.stream is not None:
                words = f"worker {hello.rank} has a newer checkpoint, of {_named(mine)}"
                seat.stream.outbox.put_nowait(AttachError(grpc.StatusCode.UNAVAILABLE, words))

    def begin(self, seats: Iterable[Seat], now_s: float) -> None:
        """Begin the job with these new workers, at their checkpoint and with the controller's state from this
        checkpoint."""
        self._saved.clear()
        hello = next((seat.hello for seat in seats), pb.Hello())
        self.resumed, self._absent = hello.checkpoint, set(hello.control.missing)
        if self.resumed:
            resume(self.control_loop, hello.control, self.resumed, now_s)

    @property
    def expected(self) -> int:
        """The number of workers in the new workers' checkpoint. All other workers had died, or not begun, when it was
        saved, and may never attach."""
        missing = {rank for seat in self.members.fresh for rank in seat.hello.control.missing}
        return sum(rank not in missing for rank in range(self.members.workers))

    def ledger_for(self, seat: Seat) -> int:
        """Return the checkpoint whose ledger a welcomed worker takes over; 0 if the checkpoint has no ledger of this
        worker, or if the worker has taken part since the job began."""
        return 0 if seat.took_part or seat.rank in self._absent else self.resumed

    # -- saving

    def saved(self, rank: int, message: pb.Saved, now_s: float) -> None:
        """Note that a worker has saved its part of a checkpoint."""
        self._saved.setdefault(message.iteration, {})[rank] = dict(message.files)
        for old in sorted(self._saved)[:-KEPT]:
            del self._saved[old]
        self.look(now_s)

    def look(self, now_s: float) -> None:
        """Have a worker complete each checkpoint of which every training worker has saved its part."""
        training = {seat.rank for seat in self.members.attached if seat.state is SeatState.TRAINING}
        whole = [number for number, ranks in self._saved.items() if training and training <= ranks.keys()]
        for iteration in whole:
            saved = self._saved.pop(iteration)
            files = {name: digest for part in saved.values() for name, digest in part.items()}
            state = state_of(self.control_loop, iteration, now_s)
            state.missing.extend(rank for rank in range(self.members.workers) if rank not in saved)
            for seat in [seat for seat in self.members.attached if f"replica-{seat.rank}" in files][:1]:
                seat.send(messages.checkpoint(iteration, files, state))


def _named(checkpoint: int) -> str:
    return f"iteration {checkpoint}" if checkpoint else "no iteration"
