"""Claims of experiments, and the verdicts on them from the results."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from kofn.experiments.answer import best_of, faults_of
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
    try:
        frame = experiment.rows(claim.where)
    except ConfigError as error:
        yield Verdict(claim=claim.text, holds=None, numbers=str(error))
        return
    found = [(*_judged(claim, experiment, group), _at(world)) for world, group in experiment.worlds(frame)]
    if claim.each:
        for holds, words, at in found:
            yield Verdict(claim=f"{claim.text}{at}", holds=holds, numbers=words)
        return
    found = next(([one] for one in found if one[0] is None), found)
    holds = None if found[0][0] is None else all(holds for holds, _, _ in found)
    yield Verdict(claim=claim.text, holds=holds, numbers="; ".join(f"{words}{at}" for _, words, at in found))


def _judged(claim: ClaimSection, experiment: Experiment, world: pd.DataFrame) -> tuple[bool | None, str]:
    """Return whether the claim holds in one world, and its numbers; None with the missing runs that it needs."""
    assert claim.column is not None
    there = set(world["contender"])
    missing = [name for name in (claim.contender, claim.slower, claim.faster) if name is not None and name not in there]
    if claim.others and not there & {*claim.others}:
        missing += [" or ".join(claim.others)]
    if missing:
        return None, f"needs runs of {', '.join(missing)}"
    about = (claim.contender, claim.slower, claim.faster, *claim.others)
    if faults := faults_of(world[world["contender"].isin(about)]):
        return False, f"a training is not sound: {faults[0]}"
    values = experiment.values(world, claim.column)
    by_seed = {str(name): _by_seed(claim.column, rows, values) for name, rows in world.groupby("contender")}
    if claim.contender is None:
        return _ratio(claim, by_seed, str(claim.slower), str(claim.faster))
    if not claim.others:
        return _single(claim, by_seed[claim.contender])
    others = world[world["contender"].isin(claim.others)]
    other = best_of(experiment, others, claim.column) or str(others["contender"].iloc[0])
    return _ratio(claim, by_seed, claim.contender, other)


def _by_seed(column: str, rows: pd.DataFrame, values: "pd.Series[Any]") -> dict[int, float]:
    """Return a contender's value by seed. A missing time to an event is infinite, since the event never came; another
    missing value is NaN."""
    missing = math.inf if "target" in column else math.nan
    return {
        int(seed): missing if math.isnan(value) else float(value)
        for seed, value in zip(rows[SEED], values[rows.index], strict=True)
    }


def _ratio(claim: ClaimSection, by_seed: Mapping[str, dict[int, float]], above: str, below: str) -> tuple[bool, str]:
    """Compare two contenders seed by seed: their mean ratio must be within the bounds, and so must each infinite ratio
    and each ratio of 0, of a seed in which one of them never came. A seed without a ratio is outside of the bounds."""
    seeds = [seed for seed in by_seed[above] if seed in by_seed[below]]
    values = {name: [by_seed[name][seed] for seed in seeds] for name in (above, below)}
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.divide(values[above], values[below]).tolist()
    known = [ratio for ratio in ratios if 0 < ratio < math.inf]
    found = Interval.of(known)
    judged = [ratio for ratio in ratios if ratio not in known] + ([] if found is None else [found.mean])
    notes = [f"{name} {words}" for name, several in values.items() if (words := _without(several))]
    that = f" that of {below}" if claim.others else ""
    words = "no seed in common" if not seeds else "-" if found is None else f"{ratio_text(found)} times{that}"
    holds = bool(judged) and all(_within(claim, ratio) for ratio in judged)
    return holds, ", ".join([words, *notes, *_doubt(claim, found, holds=holds)])


def _single(claim: ClaimSection, values: dict[int, float]) -> tuple[bool, str]:
    """Compare the mean of a contender's value with the bounds."""
    assert claim.column is not None
    if words := _without([*values.values()]):
        return False, words
    found = Interval.of([*values.values()])
    holds = found is not None and _within(claim, found.mean)
    return holds, ", ".join([column_text(claim.column, found), *_doubt(claim, found, holds=holds)])


def _doubt(claim: ClaimSection, found: Interval | None, *, holds: bool) -> list[str]:
    """Return a remark if the interval of the mean does not show what the mean shows."""
    if found is None or found.low is None or found.high is None:
        return []
    same = all(_within(claim, end) == holds for end in (found.low, found.high))
    return [] if same else ["its interval does not exclude the opposite"]


def _within(claim: ClaimSection, value: float) -> bool:
    if math.isnan(value):
        return False
    return (claim.at_least is None or value >= claim.at_least) and (claim.at_most is None or value <= claim.at_most)


def _without(values: Sequence[float]) -> str:
    """Return in how many seeds the value never came or is missing; empty: in none."""
    count = sum(not math.isfinite(value) for value in values)
    word = "missing" if any(map(math.isnan, values)) else "never"
    return f"{word} in {count} of {len(values)} seeds" if count else ""


def _at(world: dict[str, object]) -> str:
    return f" ({', '.join(f'{name} = {value}' for name, value in world.items())})" if world else ""
