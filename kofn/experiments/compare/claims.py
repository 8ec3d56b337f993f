"""The claims of a comparison."""

import math
from collections.abc import Iterator, Sequence

from kofn.experiments.claims import Claim, Verdict
from kofn.experiments.compare.arms import ContenderArm, Rivals, setting_of
from kofn.experiments.compare.points import BLOCKED, FLOAT32, NONE
from kofn.experiments.tables import milliseconds, seconds

LIMIT = 1.15
"""The permitted ratio of an iteration's time in the network to the link's limit."""

RING = 1.5
"""The least speed-up over a ring."""

SERVER = 0.8
"""The least speed-up over a parameter server, divided by the number of workers."""

OFF = 0.05
"""The permitted relative error of the sum of an iteration's parts."""


def first_at_the_target(found: Sequence[Rivals]) -> Iterator[Verdict]:
    """Compare the times to the target while a worker is blocked: a contender whose k the controller chooses, against
    all other contenders with the same codec or float32."""
    for rivals in found:
        setting = setting_of(rivals)
        if setting.trained and setting.straggler == BLOCKED:
            if not (arms := _of("adaptive", rivals)):
                yield _not_asked(f"{setting.title}: adaptive at the target before all others", "adaptive")
            for arm in arms:
                if others := [other for other in rivals.values() if _comparable(arm, other)]:
                    yield _before_all(arm, others)
                else:
                    claim = f"{setting.title}: {arm.contender.name} at the target before all others"
                    yield _not_asked(claim, "another collective")


def _comparable(arm: ContenderArm, other: ContenderArm) -> bool:
    """Return whether the other contender chooses no k, and sends the same codec or float32."""
    return other.contender.collective != "adaptive" and other.contender.codec in (arm.contender.codec, FLOAT32)


def fast_in_the_network(found: Sequence[Rivals]) -> Iterator[Verdict]:
    """Compare iteration times with all workers and without stragglers to the link's limit and to other contenders."""
    for rivals in found:
        setting = setting_of(rivals)
        if not setting.trained and setting.straggler == NONE:
            if not (arms := _of("full", rivals)):
                yield _not_asked(f"{setting.title}: full near the link's limit, and faster than the others", "full")
            for arm in arms:
                yield from _fast(arm, rivals)


def _fast(arm: ContenderArm, rivals: Rivals) -> Iterator[Verdict]:
    yield _near_limit(arm)
    if not (peers := [rivals[name] for name in ("ring", "gloo", "mpi") if name in rivals]):
        claim = f"{arm.setting.title}: {arm.contender.name} at least {RING:g} times faster than a ring"
        yield _not_asked(claim, "ring, gloo or mpi")
    for peer in peers:
        yield _faster(arm, peer, RING, f"{RING:g}")
    bound, server = SERVER * arm.setting.workers, f"server-{arm.contender.codec}"
    words = f"{SERVER:g} n = {bound:g}"
    if server in rivals:
        yield _faster(arm, rivals[server], bound, words)
    else:
        claim = f"{arm.setting.title}: {arm.contender.name} at least {words} times faster than {server}"
        yield _not_asked(claim, "server in the same codec")


def _not_asked(claim: str, needs: str) -> Verdict:
    return Verdict(claim=claim, holds=None, numbers=f"needs runs with {needs}")


def _of(collective: str, rivals: Rivals) -> list[ContenderArm]:
    return [arm for arm in rivals.values() if arm.contender.collective == collective]


def adds_up(found: Sequence[Rivals]) -> Iterator[Verdict]:
    """Check that the parts of an iteration add up to the iteration's time in every run."""
    runs = [
        (off, f"{arm.point.name}, seed {seed}")
        for rivals in found
        for arm in rivals.values()
        for off, seed in zip(arm.known("parts_off"), arm.seeds, strict=True)
    ]
    if runs:
        worst, where = max(runs, key=lambda run: abs(run[0]))
        near = sum(abs(off) <= OFF for off, _ in runs)
        yield Verdict(
            claim=f"where the time goes adds up to the iteration time within {OFF:.0%} in every run",
            holds=abs(worst) <= OFF,
            numbers=f"{near} of {len(runs)} runs; furthest off is {where}, by {worst:+.1%}",
        )


CLAIMS: tuple[Claim[Sequence[Rivals]], ...] = (first_at_the_target, fast_in_the_network, adds_up)


def _near_limit(arm: ContenderArm) -> Verdict:
    ratio, limit_s = arm.spread("times_limit"), arm.point.limit_s
    reduce = arm.spread("reduce_s").median / limit_s
    return Verdict(
        claim=f"{arm.setting.title}: {arm.contender.name} within {LIMIT:g} times the link's limit",
        holds=ratio.median <= LIMIT,
        numbers=f"{_iteration(arm)} against {milliseconds(limit_s)} for {arm.point.gradient_bytes / 1e6:.2f} MB: "
        f"x {ratio.median:.2f} ({ratio.low:.2f} .. {ratio.high:.2f}); the all-reduce alone x {reduce:.2f}",
    )


def _faster(arm: ContenderArm, other: ContenderArm, bound: float, words: str) -> Verdict:
    ratio = arm.times_faster(other, "iteration_s")
    allowed = other.point.busiest_bytes / arm.point.busiest_bytes
    numbers = (
        "no seed in common" if ratio is None else f"{ratio.median:.2f} times ({ratio.low:.2f} .. {ratio.high:.2f})"
    )
    return Verdict(
        claim=f"{arm.setting.title}: {arm.contender.name} at least {words} times faster than {other.contender.name}",
        holds=ratio is not None and ratio.median >= bound,
        numbers=f"{_iteration(arm)} against {_iteration(other)}: {numbers}; "
        f"by the bytes of the busiest links {allowed:.2f}",
    )


def _before_all(arm: ContenderArm, others: Sequence[ContenderArm]) -> Verdict:
    ratios = {other.contender.name: arm.times_faster(other, arm.pace) for other in others}
    words = [
        f"{name} {'?' if ratio is None else 'never' if math.isinf(ratio.median) else f'x {ratio.median:.2f}'}"
        for name, ratio in ratios.items()
    ]
    return Verdict(
        claim=f"{arm.setting.title}: {arm.contender.name} at the target before all others",
        holds=all(ratio is not None and ratio.median > 1 for ratio in ratios.values()),
        numbers=f"{seconds(arm.spread(arm.pace).median)}; the others take {', '.join(words)}",
    )


def _iteration(arm: ContenderArm) -> str:
    return milliseconds(arm.spread("iteration_s").median)
