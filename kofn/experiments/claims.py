"""Claims of experiments: each is computed from the trials, and holds or does not, with its numbers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kofn.experiments.tables import Columns, TextTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A claim, whether it holds, and the numbers that say so."""

    claim: str
    holds: bool
    numbers: str

    @property
    def answer(self) -> str:
        return "yes" if self.holds else "NO"


Claim = Callable[[T], Iterator[Verdict]]
"""Nothing where the trials cannot tell."""

COLUMNS: Columns[Verdict] = {
    "claim": lambda one: one.claim,
    "holds": lambda one: one.answer,
    "numbers": lambda one: one.numbers,
}


def judge(claims: Iterable[Claim[T]], of: T) -> list[Verdict]:
    """On everything that can be told of it."""
    return [verdict for claim in claims for verdict in claim(of)]


def lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a line for each verdict, and NOT_SHOWN where a claim does not hold."""
    return [f"{one.answer:3}  {one.claim}: {one.numbers}" for one in verdicts] + explanation(verdicts)


def explanation(verdicts: Sequence[Verdict]) -> list[str]:
    return [] if all(one.holds for one in verdicts) else [NOT_SHOWN]


NOT_SHOWN = (
    "NO: the trials do not show this claim, which is about speed, bytes or losses. The results are sound unless a"
    " failure is listed. Few seeds and a busy machine make a NO more likely: repeat with more --seeds on an idle one."
)
"""What a NO means; follows verdicts that have one."""


def table(verdicts: Sequence[Verdict]) -> TextTable:
    return TextTable.of(COLUMNS, verdicts)
