"""What a job waits for when it does not move, in words: who waits for whom, and for how long."""

import logging
import time
from dataclasses import dataclass, field

import numpy as np

from controller.lifecycle import Lifecycle, Phase
from controller.members import State, ranks

_LOG = logging.getLogger(__name__)

EXPLAIN_AFTER_S = 2.0


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Looks at a job's course now and then; `text` is empty while it moves."""

    life: Lifecycle
    moved_s: float = field(default_factory=time.monotonic)  # when any worker last reported another iteration
    text: str = ""
    _logged: str = ""

    def look(self, now_s: float) -> bool:
        """True when `text` has changed. Each reason is logged once."""
        words, since_s = self._reason()
        waited_s = now_s - since_s
        text = f"{words} since {waited_s:.0f} s" if words and waited_s >= EXPLAIN_AFTER_S else ""
        if text and words != self._logged:
            _LOG.warning("job %d: %s", self.life.members.job, text)
        self._logged = words if text else ""
        changed = text != self.text
        self.text = text
        return changed

    def _reason(self) -> tuple[str, float]:
        """What is waited for at this moment, and since when."""
        life, seats = self.life, self.life.members.seats
        absent = ranks(seat.rank for seat in seats if seat.stream is None)
        match life.phase:
            case Phase.WAITING:
                here = f"{len(life.members.attached)} of {life.start_workers} attached"
                return f"starting: {here}, waiting for {absent}", life.since_s
            case Phase.OPENING:
                return f"starting: {life.slots.away() or 'waiting for the switch'}", life.since_s
            case Phase.GATHERING:
                return f"regrouping: waiting for {absent} to attach again", life.since_s
            case Phase.REGROUPING if life.regroup is not None:
                waiting = life.regroup.waiting
                return f"regrouping: waiting for {ranks(waiting) if waiting else 'the switch'}", life.since_s
            case Phase.RUNNING:
                return self._running(), max(self.moved_s, life.since_s)
            case _:
                return "", life.since_s

    def _running(self) -> str:
        """Why no iteration ends."""
        life = self.life
        if away := life.slots.away():
            return f"{away}: waiting for it"
        if not life.members.sources:
            return "every worker is lost: waiting for one to attach"
        iteration = life.decider.iteration + 1
        live = [int(rank) for rank in np.flatnonzero(life.decider.live)]
        tracks = life.decider.measurements.track
        behind = [rank for rank in live if tracks[rank].reached < iteration and not self._finished(rank)]
        whom = ranks(behind) if behind else "results: every live worker has sent its first block"
        return f"iteration {iteration} (k = {life.decider.k} of {len(live)}): waiting for {whom}"

    def _finished(self, rank: int) -> bool:
        """A worker that has nothing more to send."""
        return self.life.members.seats[rank].state is State.FINISHED
