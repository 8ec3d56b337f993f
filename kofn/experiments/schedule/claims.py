"""The claims about schedules, setting by setting."""

import math
from collections.abc import Iterator
from itertools import permutations

from kofn.experiments.claims import Claim, Verdict
from kofn.experiments.schedule.arms import Arms, ContenderArm
from kofn.experiments.schedule.contenders import BUCKETS, DEFAULT, REAL
from kofn.experiments.tables import milliseconds

SLOWER = 1.03
"""The permitted ratio of the default's iteration to the best contender's."""

FASTER = {"buckets": 1.2, "sequential": 1.6}
"""The least speed-up where transfers take as long as computation."""

OF_BOUND = 1.10

PREDICTED = 0.10
"""The permitted error of the model."""


def of_accelerators(arms: Arms) -> Arms:
    """Return the arms that claims are about."""
    return {setting: contenders for setting, contenders in arms.items() if setting != REAL}


def never_slower(arms: Arms) -> Iterator[Verdict]:
    """Compare the default with the best of its setting."""
    for setting, contenders in arms.items():
        if (mine := contenders.get(DEFAULT)) is None or len(contenders) == 1:
            continue
        best = min((arm for arm in contenders.values() if arm is not mine), key=lambda arm: arm.iteration_s)
        yield Verdict(
            claim=f"{setting}: {DEFAULT} at most {SLOWER:g} times the best other",
            holds=mine.against(best) <= SLOWER,
            numbers=_against(mine, best),
        )


def worth_it(arms: Arms) -> Iterator[Verdict]:
    """Compare with buckets and no overlap, for equal layers and for VGG."""
    for setting in ("equal-1", "vgg-1"):
        contenders = arms.get(setting, {})
        if (mine := contenders.get(DEFAULT)) is None:
            continue
        for names, bound in (((*BUCKETS,), FASTER["buckets"]), (("sequential",), FASTER["sequential"])):
            if known := [contenders[name] for name in names if name in contenders]:
                other = min(known, key=lambda arm: arm.iteration_s)
                yield Verdict(
                    claim=f"{setting}: {DEFAULT} at least {bound:g} times faster than {other.contender.schedule}",
                    holds=other.against(mine) >= bound,
                    numbers=f"{_against(mine, other)}: {other.against(mine):.2f} times faster",
                )


def near_the_bound(arms: Arms) -> Iterator[Verdict]:
    """Compare with the bound of the critical path."""
    for setting, contenders in arms.items():
        if (mine := contenders.get(DEFAULT)) is not None:
            bound_s = mine.spread("bound_s").median
            times = mine.iteration_s / bound_s
            yield Verdict(
                claim=f"{setting}: {DEFAULT} at most {OF_BOUND:g} times the bound",
                holds=times <= OF_BOUND,
                numbers=f"{milliseconds(mine.iteration_s)} against {milliseconds(bound_s)}: {times:.2f}",
            )


def as_predicted(arms: Arms) -> Iterator[Verdict]:
    """Compare each measured time with the model's."""
    for setting, contenders in arms.items():
        off = {name: arm.iteration_s / arm.predicted_s for name, arm in contenders.items()}
        worst = max(off, key=lambda name: abs(math.log(off[name])))
        yield Verdict(
            claim=f"{setting}: iterations take what the model says, within {PREDICTED:.0%}",
            holds=all(abs(times - 1) <= PREDICTED for times in off.values()),
            numbers=f"{off[worst]:.2f} times as long ({worst})",
        )


def ranked_as_predicted(arms: Arms) -> Iterator[Verdict]:
    """The model names the faster of two contenders that differ by more than its tolerated error."""
    for setting, contenders in arms.items():
        pairs = [
            (one, other)
            for one, other in permutations(contenders.values(), 2)
            if one.iteration_s * (1 + PREDICTED) < other.iteration_s
        ]
        wrong = [(one, other) for one, other in pairs if one.predicted_s >= other.predicted_s]
        names = ", ".join(f"{one.contender.schedule} before {other.contender.schedule}" for one, other in wrong)
        yield Verdict(
            claim=f"{setting}: the model ranks contenders that differ by more than {PREDICTED:.0%}",
            holds=not wrong,
            numbers=f"{len(pairs) - len(wrong)} of {len(pairs)} pairs{': not ' + names if wrong else ''}",
        )


CLAIMS: tuple[Claim[Arms], ...] = (never_slower, worth_it, near_the_bound, as_predicted, ranked_as_predicted)


def _against(mine: ContenderArm, other: ContenderArm) -> str:
    theirs = f"{milliseconds(other.iteration_s)} ({other.contender.schedule})"
    return f"{milliseconds(mine.iteration_s)} against {theirs}: {mine.against(other):.3f}"
