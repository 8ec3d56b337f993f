"""Claims of experiments: the trials show whether each holds, with its numbers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kofn.experiments.tables import Columns, TextTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A claim, whether it holds, and the numbers that show it."""

    claim: str
    holds: bool | None  # None: the runs that it is about were not made
    numbers: str  # or the runs that it needs

    @property
    def answer(self) -> str:
        return "not asked" if self.holds is None else "yes" if self.holds else "NO"


Claim = Callable[[T], Iterator[Verdict]]
"""Yields no verdict where the trials cannot tell."""

COLUMNS: Columns[Verdict] = {
    "claim": lambda one: one.claim,
    "holds": lambda one: one.answer,
    "numbers": lambda one: one.numbers,
}


def judge(claims: Iterable[Claim[T]], of: T) -> list[Verdict]:
    """Return the verdicts on all claims that can be judged."""
    return [verdict for claim in claims for verdict in claim(of)]


def lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a line for each verdict, and NOT_SHOWN where a claim does not hold."""
    return [f"{one.answer:3}  {one.claim}: {one.numbers}" for one in verdicts] + explanation(verdicts)


def explanation(verdicts: Sequence[Verdict]) -> list[str]:
    return [NOT_SHOWN] if any(one.holds is False for one in verdicts) else []


NOT_SHOWN = (
    "NO: the trials do not show this claim, which is about speed, bytes or losses. The results are sound unless a"
    " failure is listed. Few seeds and a busy machine make a NO more likely: repeat with more --seeds on an idle one."
)
"""The meaning of a NO; it follows verdicts that have one."""


def table(verdicts: Sequence[Verdict]) -> TextTable:
    return TextTable.of(COLUMNS, verdicts)
