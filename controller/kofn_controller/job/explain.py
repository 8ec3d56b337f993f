"""Explains in words why a job does not progress: which workers it waits for, and for how long."""

import logging
import time
from dataclasses import dataclass, field

import numpy as np

from kofn_common.results.ranks import name_workers
from kofn_controller.job.members import SeatState
from kofn_controller.job.recovery import Recovery
from kofn_controller.job.state import JobState, Phase

_LOG = logging.getLogger(__name__)

EXPLAIN_AFTER_S = 2.0


@dataclass(slots=True, kw_only=True)
class Waiting:
    """The reason for which a job waits. `text` is empty while the job progresses."""

    job_state: JobState
    recovery: Recovery
    moved_s: float = field(default_factory=time.monotonic)  # when a worker last reported a new iteration
    text: str = ""
    _logged: str = ""

    def look(self, now_s: float) -> bool:
        """Update `text`; return whether it has changed. Each reason is logged once."""
        words, since_s = self._reason()
        waited_s = now_s - since_s
        text = f"{words} since {waited_s:.0f} s" if words and waited_s >= EXPLAIN_AFTER_S else ""
        if text and words != self._logged:
            _LOG.warning("job %d: %s", self.job_state.members.job, text)
        self._logged = words if text else ""
        changed = text != self.text
        self.text = text
        return changed

    def _reason(self) -> tuple[str, float]:
        """Return the reason, and since when it holds."""
        job, seats = self.job_state, self.job_state.members.seats
        absent = name_workers(seat.rank for seat in seats if seat.stream is None)
        match job.phase:
            case Phase.WAITING:
                here = f"{len(job.members.attached)} of {job.start_workers} attached"
                return f"starting: {here}, waiting for {absent}", job.since_s
            case Phase.OPENING:
                return f"starting: {job.slots.absent() or 'waiting for the switch'}", job.since_s
            case Phase.GATHERING:
                return f"regrouping: waiting for {absent} to attach again", job.since_s
            case Phase.REGROUPING:
                waiting = self.recovery.waiting
                return f"regrouping: waiting for {name_workers(waiting) if waiting else 'the switch'}", job.since_s
            case Phase.RUNNING:
                return self._running(), max(self.moved_s, job.since_s)
            case _:
                return "", job.since_s

    def _running(self) -> str:
        job = self.job_state
        if away := job.slots.absent():
            return f"{away}: waiting for it"
        if not job.members.sources:
            return "every worker is lost: waiting for one to attach"
        iteration = job.control_loop.iteration + 1
        live = [int(rank) for rank in np.flatnonzero(job.control_loop.live)]
        reached = job.control_loop.measurements.reached
        behind = [rank for rank in live if reached[rank] < iteration and not self._finished(rank)]
        whom = name_workers(behind) if behind else "results: every live worker has sent its first block"
        return f"iteration {iteration} (k = {job.control_loop.k} of {len(live)}): waiting for {whom}"

    def _finished(self, rank: int) -> bool:
        """Return True if a worker has nothing more to send."""
        return self.job_state.members.seats[rank].state is SeatState.FINISHED
