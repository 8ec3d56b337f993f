"""Claims of experiments, and the verdicts on them from the trials."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kofn.experiments.tables import Columns, TextTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A claim, whether it holds, and the numbers that show it."""

    claim: str
    holds: bool | None  # None: the runs that the claim is about were not made
    numbers: str  # numbers that show the answer, or the missing runs that the claim needs

    @property
    def answer(self) -> str:
        return "not asked" if self.holds is None else "yes" if self.holds else "NO"


Claim = Callable[[T], Iterator[Verdict]]
"""A function that takes the trials, and yields verdicts. It yields no verdict if the trials cannot decide the claim."""

COLUMNS: Columns[Verdict] = {
    "claim": lambda verdict: verdict.claim,
    "holds": lambda verdict: verdict.answer,
    "numbers": lambda verdict: verdict.numbers,
}


def judge(claims: Iterable[Claim[T]], of: T) -> list[Verdict]:
    """Return the verdicts on all claims that can be judged."""
    return [verdict for claim in claims for verdict in claim(of)]


def lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a line for each verdict, and NOT_SHOWN if a claim does not hold."""
    return [f"{verdict.answer:3}  {verdict.claim}: {verdict.numbers}" for verdict in verdicts] + explanation(verdicts)


def explanation(verdicts: Sequence[Verdict]) -> list[str]:
    return [NOT_SHOWN] if any(verdict.holds is False for verdict in verdicts) else []


NOT_SHOWN = (
    "NO: the trials do not show this claim, which is about speed, bytes or losses. The results are sound unless a"
    " failure is listed. Few seeds and a busy machine make a NO more likely: repeat it with more --seeds on an idle"
    " machine."
)
"""The explanation that follows verdicts with a NO."""


def table(verdicts: Sequence[Verdict]) -> TextTable:
    return TextTable.of(COLUMNS, verdicts)
