"""A regroup: the switch has lost the job's slots, and everyone who has results has to stop before it gets new ones.

Whoever holds the only copy of a result must be heard before a slot may sum that block again. So packets of the new
generation are let in when every worker has answered; who is lost meanwhile is not waited for.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Regroup:
    """Who has answered for this generation, and who has not."""

    generation: int
    waiting: set[int]
    answered: set[int] = field(default_factory=set)
    admitted: bool = False  # the switch takes packets of the generation

    def join(self, rank: int) -> None:
        """One more worker has to answer."""
        self.answered.discard(rank)
        self.waiting.add(rank)

    def answer(self, rank: int, generation: int) -> None:
        """A worker's Regrouped; one for an earlier generation says nothing about this one."""
        if generation == self.generation and rank in self.waiting:
            self.waiting.remove(rank)
            self.answered.add(rank)

    def gone(self, rank: int) -> None:
        """A worker has left, or needs no results any more."""
        self.waiting.discard(rank)
        self.answered.discard(rank)

    @property
    def complete(self) -> bool:
        """Everyone has answered, and there is someone."""
        return bool(self.answered) and not self.waiting

    @property
    def deserted(self) -> bool:
        """Nobody is left to answer."""
        return not self.answered and not self.waiting
