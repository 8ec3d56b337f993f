"""The claims about codecs and links that slow down."""

from collections.abc import Iterator

from kofn.experiments.claims import Claim, Verdict
from kofn.experiments.codecs.arms import ITERATIONS, Arms, VariantArm
from kofn.experiments.codecs.variants import ADAPTIVE, BASELINE, NO_FEEDBACK, UNCOMPRESSED
from kofn.experiments.tables import milliseconds, shown

BOUNDS = {"int16": 1.10, "int8": 1.10, "int4": 1.50, "onebit": 1.50}
"""By codec, with error feedback: the permitted iterations to the target, divided by the iterations of 32-bit lanes."""

SHORTER = 2.0
"""The factor by which the adaptive ratio shortens an iteration when a link drops to a quarter."""

DROPS = {"link-one": "the link of one worker drops to a quarter", "link-all": "all links drop to a quarter"}


def as_few_iterations(arms: Arms) -> Iterator[Verdict]:
    """Compare each codec's iterations to the target with the iterations of 32-bit lanes."""
    baseline = arms.get(BASELINE)
    for name, bound in BOUNDS.items():
        if baseline is not None and name in arms:
            yield _within(arms[name], arms.get(f"{name}{NO_FEEDBACK}"), baseline, bound)


def _within(arm: VariantArm, without: VariantArm | None, baseline: VariantArm, bound: float) -> Verdict:
    ratio = arm.against(baseline)
    numbers = f"{_iterations(arm)} against {_iterations(baseline)}: {_times(ratio)}"
    if without is not None:
        numbers += f"; without feedback {_iterations(without)}: {_times(without.against(baseline))}"
    return Verdict(
        claim=f"{arm.variant.name}: at the target within {bound:g} times the iterations of {BASELINE}",
        holds=ratio <= bound,
        numbers=numbers,
    )


def slower_links_are_adapted_to(arms: Arms) -> Iterator[Verdict]:
    """Compare iteration times and accuracy when a link slows down."""
    for base, story in DROPS.items():
        plain, adaptive = arms.get(f"{base}-{UNCOMPRESSED}"), arms.get(f"{base}-{ADAPTIVE}")
        if plain is None or adaptive is None:
            continue
        bound = f"at least {SHORTER:g} times shorter"
        yield _shorter(f"{story}: that iteration {bound} with the adaptive ratio", adaptive, plain, "change_s")
        yield _shorter(f"{story}: the iterations after it {bound}", adaptive, plain, "after_s")
        yield Verdict(
            claim=f"{story}: the target accuracy is reached with the adaptive ratio, as it is without",
            holds=adaptive.reached == len(adaptive.seeds),
            numbers=f"{_accuracy(adaptive)} against {_accuracy(plain)}",
        )


CLAIMS: tuple[Claim[Arms], ...] = (as_few_iterations, slower_links_are_adapted_to)


def _shorter(claim: str, adaptive: VariantArm, plain: VariantArm, name: str) -> Verdict:
    times = adaptive.shorter(plain, name)
    mine, theirs = (milliseconds(arm.spread(name).median, never="never") for arm in (adaptive, plain))
    return Verdict(claim=claim, holds=times >= SHORTER, numbers=f"{mine} against {theirs}: {times:.2f} times")


def _accuracy(arm: VariantArm) -> str:
    return f"{arm.spread('final_accuracy').median:.1%} after {_iterations(arm)}"


def _iterations(arm: VariantArm) -> str:
    return shown(arm.spread(ITERATIONS).median, "{:,.0f} iterations")


def _times(ratio: float) -> str:
    return shown(ratio, "x {:.2f}", never="-")
