"""Changes during a trial, by an event of the configuration or by hand."""

from dataclasses import dataclass

from kofn_common.results.event_log import read_event_log
from kofn_common.results.folder import TrialFolder
from kofn_common.results.objective_notes import read_objective_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """A change during a trial. If `by_hand` is true, an operator has made the change (kofn set-k), and nothing in the
    configuration explains the change."""

    time: float
    """Unix time."""
    iteration: int
    """The newest iteration that had ended at the change."""
    what: str
    """"worker-2 killed", "objective fixed:2"."""
    by_hand: bool

    @property
    def words(self) -> str:
        return f"{self.what}{' by hand' if self.by_hand else ''}"

    def __str__(self) -> str:
        return f"{self.words} at iteration {self.iteration}"


def read_interventions(folder: TrialFolder, job: int) -> tuple[Intervention, ...]:
    """Return a job's changes in one trial, in the order of time. An event that was missed is no change."""
    events = [
        Intervention(time=entry.time, iteration=entry.iteration, what=entry.done, by_hand=False)
        for entry in read_event_log(folder.events)
        if not entry.missed and entry.action != "objective"  # objectives come from the controller's journal
    ]
    set_objectives = [
        Intervention(time=note.time, iteration=note.iteration, what=f"objective {note.objective}", by_hand=note.by_hand)
        for note in read_objective_notes(folder.decisions, job)
        if not note.fault
    ]
    return tuple(sorted([*events, *set_objectives], key=lambda change: change.time))
