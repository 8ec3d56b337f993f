"""The lines about objectives in decisions.jsonl: each change during the run with its author, and each fault."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kofn_common.results.json_lines import decoded
from kofn_common.results.tail import LineTail


class ObjectiveNote(msgspec.Struct, frozen=True, kw_only=True):
    """One line: an objective was set, or (with a fault) failed."""

    time: float  # Unix
    job: int
    iteration: int = 0  # the newest iteration that the controller knew of
    objective: str = ""  # empty: a line of another kind
    planned: bool = False  # by an event of the configuration; otherwise by an operator (kofn set-k)
    fault: str = ""

    @property
    def by_hand(self) -> bool:
        return not (self.planned or self.fault)

    @property
    def words(self) -> str:
        """The line as text."""
        if self.fault:
            return f"{self.fault} at iteration {self.iteration}; k stays as it is"
        return f"objective {self.objective} set{' by hand' if self.by_hand else ''} at iteration {self.iteration}"


_NOTE = msgspec.json.Decoder(ObjectiveNote)


def objective_notes(journal: LineTail, job: int) -> Iterator[ObjectiveNote]:
    """Yield the notes about a job among the journal's new lines."""
    notes = decoded(journal.lines(), _NOTE.decode, journal.path)
    return (note for note in notes if note.objective and note.job == job)


def read_objective_notes(decisions: Path, job: int) -> list[ObjectiveNote]:
    """Read all notes about a job; none without a file."""
    tail = LineTail(decisions)
    try:
        return list(objective_notes(tail, job))
    finally:
        tail.close()
