"""The claims about the choice of rule and k, each said yes or no with its numbers."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, geometric_mean

from run.choice.evidence import MEAN, MEDIAN, Findings, Row, constants, part
from run.claims import Verdict
from run.objectives import DEFAULT

NEAR = 0.10
"""How far a predicted iteration time may be from what is measured."""

UNDONE = 0.1
"""Changes that are taken back in a stationary training, on average."""

STARVED = 0.01
"""Of an equal share of the sums: who has less is not heard."""


def verdicts(found: Sequence[Findings]) -> list[Verdict]:
    """On everything that these scenarios can tell; a claim that they cannot is left out."""
    chosen = [(one, row) for one in found if (row := one.row(DEFAULT))]
    return [
        *_hindsight(chosen),
        *_constant(found),
        *_owned(found),
        *_starved(chosen),
        *_stable(chosen),
        *_predicted(found),
    ]


def _hindsight(chosen: Sequence[tuple[Findings, Row]]) -> Iterator[Verdict]:
    """Against the best rule and k, which nobody knows beforehand."""
    known = [(one, ratios) for one, row in chosen if (ratios := one.ratios(row))]
    if not known:
        return
    near = [ratios.median <= MEDIAN for _, ratios in known]
    worst = max(known, key=lambda pair: pair[1].mean)
    mean = geometric_mean([ratios.median for _, ratios in known])
    yield Verdict(
        claim=f"{DEFAULT}: in each scenario's median within 5% of the best fixed rule and k in hindsight",
        holds=all(near),
        numbers=f"{sum(near)} of {len(near)}, mean of medians x {mean:.2f}",
    )
    far = [ratios.mean <= MEAN for _, ratios in known]
    yield Verdict(
        claim=f"{DEFAULT}: in each scenario's mean within 15% of it",
        holds=all(far),
        numbers=f"{sum(far)} of {len(far)}; worst x {worst[1].mean:.2f} in {worst[0].scenario}",
    )
    others = [ratios.others for _, ratios in known if ratios.others is not None]
    if others:
        yield Verdict(
            claim=f"{DEFAULT}: on average within 5% of the rule and k that are the best of the other seeds",
            holds=geometric_mean(others) <= MEDIAN,
            numbers=f"x {geometric_mean(others):.2f} over {len(others)} scenarios",
        )


def _constant(found: Sequence[Findings]) -> Iterator[Verdict]:
    """What it is worth to adapt: against the best rule and part of n for all scenarios together."""
    fixed = constants(found)
    means = [ratios.mean for one in found if (row := one.row(DEFAULT)) and (ratios := one.ratios(row))]
    if len(found) > 1 and means and fixed:
        best = min(fixed, key=lambda name: fixed[name])
        yield Verdict(
            claim=f"{DEFAULT}: on average faster than any one rule and part of n in all scenarios",
            holds=geometric_mean(means) < fixed[best],
            numbers=f"x {geometric_mean(means):.2f} against x {fixed[best]:.2f} with {best}",
        )


def _owned(found: Sequence[Findings]) -> Iterator[Verdict]:
    """Where slow workers alone hold classes."""
    for one in (one for one in found if one.kind == "unlike"):
        everyone, row = one.everyone, one.row(DEFAULT)
        if (
            row is None
            or everyone is None
            or (own := one.ratios(row)) is None
            or (all_ := one.ratios(everyone)) is None
        ):
            continue
        yield Verdict(
            claim=f"{one.scenario}: {DEFAULT} faster than k = n",
            holds=own.mean < all_.mean,
            numbers=f"{all_.mean / own.mean:.2f} times; {row.reached} of {row.trainings} reached the target",
        )


def _starved(chosen: Sequence[tuple[Findings, Row]]) -> Iterator[Verdict]:
    """Nobody's gradients stay out of the sums."""
    known = [(one.scenario, row.least_share) for one, row in chosen if not math.isnan(row.least_share)]
    if known:
        where, least = min(known, key=lambda pair: pair[1])
        yield Verdict(
            claim=f"{DEFAULT}: no worker has less than {STARVED:.0%} of an equal share of the sums",
            holds=least >= STARVED,
            numbers=f"least {least:.2f} in {where}",
        )


def _stable(chosen: Sequence[tuple[Findings, Row]]) -> Iterator[Verdict]:
    """Where nothing changes."""
    rows = [row for one, row in chosen if one.kind == "stationary"]
    if rows:
        undone = fmean(row.undone for row in rows)
        yield Verdict(
            claim=f"{DEFAULT}: stable in stationary worlds, at most {UNDONE:g} changes a training are taken back",
            holds=undone <= UNDONE,
            numbers=f"{undone:.2f} of {fmean(row.changes for row in rows):.2f} changes a training",
        )


def _predicted(found: Sequence[Findings]) -> Iterator[Verdict]:
    """Iteration times by rule and k, in stationary worlds."""
    errors: dict[str, list[float]] = {}
    for one in (one for one in found if one.kind == "stationary"):
        for row in one.fixed:
            if row.error is not None:
                errors.setdefault(part(row.objective, one.workers), []).append(row.error.median)
    for name, several in errors.items():
        worst = max(several, key=abs)
        yield Verdict(
            claim=f"{name}: predicted iteration time within {NEAR:.0%} of the measured one in stationary scenarios",
            holds=abs(worst) <= NEAR,
            numbers=f"{fmean(several):+.1%} on average, worst {worst:+.1%}, {len(several)} scenarios",
        )
