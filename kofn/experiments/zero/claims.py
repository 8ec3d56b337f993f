"""The claims about few bits, task by task."""

from collections.abc import Iterator, Mapping

from kofn.experiments.claims import Claim, Verdict
from kofn.experiments.statistics import Spread
from kofn.experiments.zero.contenders import CONTENDERS, REFERENCE, WORKERS, ZeroContender
from kofn.experiments.zero.tables import NEAR, ZeroArm, steps_of

ZeroArms = Mapping[str, ZeroArm]
"""Arms by contender."""


def _is_control(contender: ZeroContender) -> bool:
    return not (contender.error_feedback and contender.mask) or contender.majority


def as_good_as_32_bits(arms: ZeroArms) -> Iterator[Verdict]:
    """Compare the loss of every contender but the controls with the loss of the reference."""
    for name, arm in arms.items():
        if name != REFERENCE and not _is_control(CONTENDERS[name]):
            yield Verdict(
                claim=f"{name}: at most {NEAR:.1%} above 32 bits after as many steps, with every seed",
                holds=arm.near == len(arm.own),
                numbers=f"{arm.near} of {len(arm.own)}, {', '.join(f'{ratio:.3f}' for ratio in arm.ratios)}",
            )


def controls_fail(arms: ZeroArms) -> Iterator[Verdict]:
    for name, arm in arms.items():
        if _is_control(CONTENDERS[name]):
            yield Verdict(
                claim=f"{name}: never gets there",
                holds=all(ratio > 1 + NEAR for ratio in arm.ratios),
                numbers=", ".join(f"{ratio:.3f}" for ratio in arm.ratios),
            )


def one_quantisation(arms: ZeroArms) -> Iterator[Verdict]:
    """Compare counted votes with the two-sided scheme, which also quantises the sum."""
    others = [arm for name, arm in arms.items() if CONTENDERS[name].two_sided]
    for name, arm in arms.items():
        voting = CONTENDERS[name]
        exact = voting.residual == "exact" and not _is_control(voting)
        if voting.bits > 1 or voting.codec or voting.two_sided or voting.k < WORKERS or not exact:
            continue
        for other in others:
            own, theirs = (Spread.of(compared.steps).median for compared in (arm, other))
            yield Verdict(
                claim=f"{name}: no more steps than two-sided",
                holds=own <= theirs,
                numbers=f"{steps_of(own)} and {steps_of(theirs)} steps, medians",
            )


CLAIMS: list[Claim[ZeroArms]] = [as_good_as_32_bits, controls_fail, one_quantisation]
