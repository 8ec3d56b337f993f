"""Claims of experiments, each said yes or no with its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A claim, whether it holds, and the numbers that say so."""

    claim: str
    holds: bool
    numbers: str


HEADINGS = ("claim", "holds", "numbers")


def rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """A table's, below the headings."""
    return [[one.claim, "yes" if one.holds else "NO", one.numbers] for one in verdicts]


def lines(verdicts: Sequence[Verdict]) -> list[str]:
    """A line a claim."""
    return [f"{said:3}  {claim}: {numbers}" for claim, said, numbers in rows(verdicts)]
