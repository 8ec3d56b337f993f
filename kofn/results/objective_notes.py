"""What decisions.jsonl says of objectives: which were set in mid-run and by whom, and which failed."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kofn.results.tail import LineTail


class ObjectiveNote(msgspec.Struct, frozen=True, kw_only=True):
    """One line: an objective was set, or (with a fault) did not do what an objective has to."""

    time: float  # Unix
    job: int
    iteration: int = 0  # the newest one that the controller had heard of
    objective: str = ""  # empty: a line of another kind
    planned: bool = False  # by an event of the configuration; else by an operator (kofn set-k)
    fault: str = ""

    @property
    def by_hand(self) -> bool:
        return not (self.planned or self.fault)

    @property
    def words(self) -> str:
        """For a person."""
        if self.fault:
            return f"{self.fault} at iteration {self.iteration}; k stays as it is"
        return f"objective {self.objective} set{' by hand' if self.by_hand else ''} at iteration {self.iteration}"


_NOTE = msgspec.json.Decoder(ObjectiveNote)


def objective_notes(lines: Iterable[bytes], job: int) -> Iterator[ObjectiveNote]:
    """Those of a job among the journal's lines."""
    notes = (_NOTE.decode(line) for line in lines)
    return (note for note in notes if note.objective and note.job == job)


def read_objective_notes(decisions: Path, job: int) -> list[ObjectiveNote]:
    """All of a job; none where nothing was written."""
    tail = LineTail(decisions)
    try:
        return list(objective_notes(tail.lines(), job))
    finally:
        tail.close()
