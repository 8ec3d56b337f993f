"""The claims about the choice of rule and k."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, geometric_mean

from kofn.experiments.claims import Claim, Verdict
from kofn.experiments.k.hindsight import MEAN, MEDIAN, Hindsight, Ratios, constants, standings
from kofn_common.config.objectives import DEFAULT

NEAR = 0.10
"""The permitted error of a predicted iteration time."""

UNDONE = 0.1
"""The permitted mean number of undone changes in a stationary training."""

STARVED = 0.01
"""The least ratio of a worker's share of the sums to an equal share; a worker with less counts as starved."""


def near_in_median(found: Sequence[Hindsight]) -> Iterator[Verdict]:
    """Compare the default with the best rule and k, which only hindsight knows."""
    medians = [ratios.median for _, ratios in _chosen(found)]
    if medians:
        near = [median <= MEDIAN for median in medians]
        yield Verdict(
            claim=f"{DEFAULT}: in each scenario's median within 5% of the best fixed rule and k in hindsight",
            holds=all(near),
            numbers=f"{sum(near)} of {len(near)}, mean of medians x {geometric_mean(medians):.2f}",
        )


def near_in_mean(found: Sequence[Hindsight]) -> Iterator[Verdict]:
    means = [(ratios.mean, scenario) for scenario, ratios in _chosen(found)]
    if means:
        near = [mean <= MEAN for mean, _ in means]
        worst, where = max(means, key=lambda pair: pair[0])
        yield Verdict(
            claim=f"{DEFAULT}: in each scenario's mean within 15% of the best fixed rule and k in hindsight",
            holds=all(near),
            numbers=f"{sum(near)} of {len(near)}; worst x {worst:.2f} in {where}",
        )


def near_the_best_of_other_seeds(found: Sequence[Hindsight]) -> Iterator[Verdict]:
    """Compare the default with a choice that is possible without hindsight."""
    others = [ratios.others for _, ratios in _chosen(found) if ratios.others is not None]
    if others:
        yield Verdict(
            claim=f"{DEFAULT}: on average within 5% of the rule and k that are the best of the other seeds",
            holds=geometric_mean(others) <= MEDIAN,
            numbers=f"x {geometric_mean(others):.2f} over {len(others)} scenarios",
        )


def better_than_constant(found: Sequence[Hindsight]) -> Iterator[Verdict]:
    """Compare the default with the rule and part of n that is best for all scenarios together."""
    fixed, means = constants(found), [ratios.mean for _, ratios in _chosen(found)]
    if len(found) > 1 and means and fixed:
        best = min(fixed, key=lambda name: fixed[name])
        yield Verdict(
            claim=f"{DEFAULT}: on average faster than any one rule and part of n in all scenarios",
            holds=geometric_mean(means) < fixed[best],
            numbers=f"x {geometric_mean(means):.2f} against x {fixed[best]:.2f} with {best}",
        )


def faster_with_skewed_data(found: Sequence[Hindsight]) -> Iterator[Verdict]:
    """Compare the default with waiting for all if only slow workers have some classes."""
    for standing in standings(_of_kind(found, "skewed"), DEFAULT):
        if (faster := standing.faster) is not None:
            yield Verdict(
                claim=f"{standing.among.scenario}: {DEFAULT} faster than k = n",
                holds=faster > 1,
                numbers=f"{faster:.2f} times; {standing.reached} of {len(standing.seeds)} reached the target",
            )


def nobody_starves(found: Sequence[Hindsight]) -> Iterator[Verdict]:
    """Check that every worker's gradients enter the sums."""
    shares = [(standing.mean("least_share"), standing.among.scenario) for standing in standings(found, DEFAULT)]
    known = [pair for pair in shares if not math.isnan(pair[0])]
    if known:
        least, where = min(known, key=lambda pair: pair[0])
        yield Verdict(
            claim=f"{DEFAULT}: no worker has less than {STARVED:.0%} of an equal share of the sums",
            holds=least >= STARVED,
            numbers=f"least {least:.2f} in {where}",
        )


def stable(found: Sequence[Hindsight]) -> Iterator[Verdict]:
    known = standings(_of_kind(found, "stationary"), DEFAULT)
    if known:
        undone = fmean(standing.mean("undone") for standing in known)
        yield Verdict(
            claim=f"{DEFAULT}: stable in stationary worlds, at most {UNDONE:g} changes a training are taken back",
            holds=undone <= UNDONE,
            numbers=f"{undone:.2f} of {fmean(standing.mean('changes') for standing in known):.2f} changes a training",
        )


def predicted(found: Sequence[Hindsight]) -> Iterator[Verdict]:
    """Compare predicted with measured iteration times by rule and k, in stationary worlds."""
    errors: dict[str, list[float]] = {}
    for standing in (standing for hindsight in _of_kind(found, "stationary") for standing in hindsight.fixed):
        if (error := standing.known_spread("prediction_error")) is not None:
            errors.setdefault(standing.part, []).append(error.median)
    for name, several in errors.items():
        worst = max(several, key=abs)
        yield Verdict(
            claim=f"{name}: predicted iteration time within {NEAR:.0%} of the measured one in stationary scenarios",
            holds=abs(worst) <= NEAR,
            numbers=f"{fmean(several):+.1%} on average, worst {worst:+.1%}, {len(several)} scenarios",
        )


CLAIMS: tuple[Claim[Sequence[Hindsight]], ...] = (
    near_in_median,
    near_in_mean,
    near_the_best_of_other_seeds,
    better_than_constant,
    faster_with_skewed_data,
    nobody_starves,
    stable,
    predicted,
)


def _chosen(found: Sequence[Hindsight]) -> list[tuple[str, Ratios]]:
    """Return scenarios with the default objective's ratios."""
    return [(standing.among.scenario, ratios) for standing in standings(found, DEFAULT) if (ratios := standing.ratios)]


def _of_kind(found: Sequence[Hindsight], kind: str) -> list[Hindsight]:
    return [hindsight for hindsight in found if hindsight.fact("kind") == kind]
