"""Claims of experiments, and the verdicts on them from the results."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

import pandas as pd

from kofn.experiments.experiment_file import HOOKS, ClaimSection
from kofn.experiments.reader import Experiment
from kofn.experiments.tables import Columns, TextTable, column_text, ratio_text
from kofn.report.interval import Interval
from kofn.report.results import SEED
from kofn_common.config.errors import ConfigError

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


def verdicts(experiment: Experiment) -> list[Verdict]:
    """Return the verdicts on the claims of the experiment's file."""
    return [verdict for claim in experiment.file.document.claim for verdict in _verdicts(claim, experiment)]


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


def _verdicts(claim: ClaimSection, experiment: Experiment) -> Iterator[Verdict]:
    if claim.function is not None:
        yield from HOOKS.load(claim.function)(experiment)
        return
    names = [name for name in (claim.contender, claim.slower, claim.faster) if name is not None]
    try:
        frame = experiment.rows(claim.where)
    except ConfigError as error:
        yield Verdict(claim=claim.text, holds=None, numbers=str(error))
        return
    assert claim.column is not None
    values = experiment.values(frame, claim.column)
    found = []
    for world, group in experiment.worlds(frame):
        missing = [name for name in names if name not in set(group["contender"])]
        if missing:
            yield Verdict(claim=claim.text, holds=None, numbers=f"needs runs of {', '.join(missing)}{_at(world)}")
            return
        by_seed = {name: _by_seed(group[group["contender"] == name], values) for name in names}
        judged = _single(claim, by_seed[names[0]]) if claim.contender else _pair(claim, *by_seed.values())
        found.append((*judged, _at(world)))
    yield Verdict(
        claim=claim.text,
        holds=all(holds for holds, _, _ in found),
        numbers="; ".join(f"{words}{at}" for _, words, at in found),
    )


def _by_seed(rows: pd.DataFrame, values: "pd.Series[Any]") -> dict[int, float]:
    """Return a contender's value by seed; infinite if the trial lacks it, since its event never came."""
    return {
        int(seed): math.inf if math.isnan(value) else float(value)
        for seed, value in zip(rows[SEED], values[rows.index], strict=True)
    }


def _pair(claim: ClaimSection, slower: dict[int, float], faster: dict[int, float]) -> tuple[bool, str]:
    """Compare two contenders seed by seed: the mean ratio must reach at_least. A seed in which the faster one never
    came has the ratio 0."""
    assert claim.at_least is not None and claim.column is not None
    seeds = [seed for seed in slower if seed in faster]
    ratios = [0.0 if math.isinf(faster[seed]) else slower[seed] / faster[seed] for seed in seeds]
    never = [
        f"{name} never in {count} of {len(seeds)} seeds"
        for name, own in ((claim.slower, slower), (claim.faster, faster))
        if (count := sum(math.isinf(own[seed]) for seed in seeds))
    ]
    known = [ratio for ratio in ratios if 0 < ratio < math.inf]
    least = Interval.of(known)
    holds = bool(ratios) and all(ratios) and (least is None or least.mean >= claim.at_least)
    words = "no seed in common" if not seeds else "-" if least is None else f"{ratio_text(least)} times"
    return holds, ", ".join([words, *never])


def _single(claim: ClaimSection, values: dict[int, float]) -> tuple[bool, str]:
    """Compare the mean of a contender's value with the bounds."""
    assert claim.column is not None
    known = [value for value in values.values() if not math.isinf(value)]
    if len(known) < len(values):
        return False, f"never in {len(values) - len(known)} of {len(values)} seeds"
    found = Interval.of(known)
    mean = fmean(known) if found is None else found.mean
    holds = (claim.at_least is None or mean >= claim.at_least) and (claim.at_most is None or mean <= claim.at_most)
    return holds, column_text(claim.column, found)


def _at(world: dict[str, object]) -> str:
    return f" ({', '.join(f'{name} = {value}' for name, value in world.items())})" if world else ""
