"""The claims about schedules, setting by setting."""

import math
from collections.abc import Iterator
from itertools import permutations

from kofn.experiments.claims import Claim, Verdict
from kofn.experiments.schedule.arms import Arms, ContenderArm
from kofn.experiments.schedule.contenders import BUCKETS, DEFAULT, REAL
from kofn.experiments.tables import milliseconds

SLOWER = 1.03
"""The permitted ratio of the default's iteration time to the best contender's iteration time."""

FASTER = {"buckets": 1.2, "sequential": 1.6}
"""By kind of contender: the least speed-up of the default over this kind, if transfers take as long as the
computation."""

OF_BOUND = 1.10

PREDICTED = 0.10
"""The permitted error of the model of the pipeline."""


def of_accelerators(arms: Arms) -> Arms:
    """Return the arms that the claims are about."""
    return {setting: contenders for setting, contenders in arms.items() if setting != REAL}


def never_slower(arms: Arms) -> Iterator[Verdict]:
    """Compare the default with the best contender of the setting."""
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
    """Compare the default with buckets and with no overlap, for equal layers and for VGG."""
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
    """Compare the default with the bound of the critical path."""
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
    """Compare measured times with the model's predictions."""
    for setting, contenders in arms.items():
        off = {name: arm.iteration_s / arm.predicted_s for name, arm in contenders.items()}
        worst = max(off, key=lambda name: abs(math.log(off[name])))
        yield Verdict(
            claim=f"{setting}: iterations take what the model says, within {PREDICTED:.0%}",
            holds=all(abs(times - 1) <= PREDICTED for times in off.values()),
            numbers=f"{off[worst]:.2f} times as long ({worst})",
        )


def ranked_as_predicted(arms: Arms) -> Iterator[Verdict]:
    """Check that the model ranks two contenders rightly if their times differ by more than the model's permitted
    error."""
    for setting, contenders in arms.items():
        pairs = [
            (faster, slower)
            for faster, slower in permutations(contenders.values(), 2)
            if faster.iteration_s * (1 + PREDICTED) < slower.iteration_s
        ]
        wrong = [(faster, slower) for faster, slower in pairs if faster.predicted_s >= slower.predicted_s]
        names = ", ".join(f"{faster.contender.schedule} before {slower.contender.schedule}" for faster, slower in wrong)
        yield Verdict(
            claim=f"{setting}: the model ranks contenders that differ by more than {PREDICTED:.0%}",
            holds=not wrong,
            numbers=f"{len(pairs) - len(wrong)} of {len(pairs)} pairs{': not ' + names if wrong else ''}",
        )


CLAIMS: tuple[Claim[Arms], ...] = (never_slower, worth_it, near_the_bound, as_predicted, ranked_as_predicted)


def _against(mine: ContenderArm, other: ContenderArm) -> str:
    theirs = f"{milliseconds(other.iteration_s)} ({other.contender.schedule})"
    return f"{milliseconds(mine.iteration_s)} against {theirs}: {mine.against(other):.3f}"
