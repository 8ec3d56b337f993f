"""The output of `kofn experiment zero --network`: a step's bytes and time, the time to a loss, and the claims."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from kofn.experiments.claims import Claim, Verdict, judge, lines
from kofn.experiments.matrix import CellResult, read_cells
from kofn.experiments.tables import Columns, TextTable, count, milliseconds, seconds, shown
from kofn.experiments.zero.network import TASK, NetworkArm, network_arms, network_cells, run_network
from kofn.experiments.zero.results import ZeroResults
from kofn.run.display import say

Arms = Mapping[float, Mapping[str, NetworkArm]]
"""Arms by rate in Mbit/s, then by contender."""

LEGEND = (
    "step: time from a batch to the parameters that all workers have, the slowest worker's median; warm-up: the same"
    " for a first step, if first steps are in full precision; up, down: bytes of Ethernet frames over a worker's link"
    " to the switch and from the switch, mean of a step after the warm-up, by the kernel's counts; formula: the bytes"
    " of their values; steps: to within 0.5 % of the last loss of uncompressed Adam (kofn experiment zero --convergence"
    " --task mlp, same --out); to the loss: time of these steps at the measured times; x gloo: speed-up over float32 of"
    " the same stage over gloo."
)

FASTER, SLOW_MBPS = 5.0, 50.0
"""The least speed-up over a training in float32 over gloo, and the greatest rate of links at which it is claimed."""

LEAST_SHARE = 28
"""The least ratio of the bytes that a worker sends in float32 to the bytes that it sends in one bit."""


def show_network(
    results: ZeroResults,
    names: Sequence[str],
    rates: Sequence[float],
    folder: Path,
    console: Console,
    *,
    report_only: bool,
) -> bool:
    """Run unfinished cells, unless `report_only`; print tables and claims. Return whether all runs were sound."""
    matrix = network_cells(names, rates, folder)
    ran = list(read_cells(matrix) if report_only else run_network(matrix, folder, console))
    arms = network_arms(ran, results.of(TASK))
    for table in network_tables(arms):
        console.print(table)
    say(console, "\n".join(lines(judge(CLAIMS, arms))))
    console.print(LEGEND)
    wrong = [f"{result.cell.title}: {why}" for result in ran for why in _wrong(result)]
    say(console, "\n".join(wrong))
    return not wrong


def _wrong(result: CellResult) -> Iterator[str]:
    if result.error:
        yield result.error
    for trial in result.trials:
        yield from trial.broken


def float32_gloo(arm: NetworkArm) -> str:
    """Return the name of the contender over gloo with the same stage in float32."""
    return f"stage {arm.contender.stage}, 32 bits, gloo"


def times_faster(arm: NetworkArm, arms: Mapping[str, NetworkArm]) -> float | None:
    other = arms.get(float32_gloo(arm))
    return None if other is None else other.to_loss_s / arm.to_loss_s


def network_tables(arms: Arms) -> Iterator[TextTable]:
    for mbps, here in arms.items():
        yield TextTable.of(_columns(here), here.values(), title=f"{mbps:g} Mbit/s")


def _columns(here: Mapping[str, NetworkArm]) -> Columns[NetworkArm]:
    return {
        "training": lambda arm: arm.contender.name,
        "warm-up": lambda arm: milliseconds(arm.warm.time_s if arm.contender.warms_up else None),
        "step": lambda arm: milliseconds(arm.few.time_s),
        "up": lambda arm: _megabytes(arm.few.up),
        "formula": lambda arm: _megabytes(arm.formula.up),
        "down": lambda arm: _megabytes(arm.few.down),
        "formula ": lambda arm: _megabytes(arm.formula.down),
        "steps": lambda arm: count(arm.steps, never="never"),
        "to the loss": lambda arm: seconds(arm.to_loss_s),
        "x gloo": lambda arm: shown(times_faster(arm, here)),
    }


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.2f} MB"


def much_faster_than_gloo(arms: Arms) -> Iterator[Verdict]:
    for mbps, here in arms.items():
        for arm in _voting(here):
            if (ratio := times_faster(arm, here)) is not None:
                goal = FASTER if mbps <= SLOW_MBPS else 1.0
                yield Verdict(
                    claim=f"{arm.contender.name}: at {mbps:g} Mbit/s {goal:g} times faster to the loss than float32",
                    holds=ratio >= goal,
                    numbers=shown(ratio),
                )


def faster_than_two_sided(arms: Arms) -> Iterator[Verdict]:
    for mbps, here in arms.items():
        for other in [arm for arm in here.values() if arm.contender.gloo and arm.contender.bits == 1]:
            for arm in _voting(here):
                yield Verdict(
                    claim=f"{arm.contender.name}: at {mbps:g} Mbit/s faster to the loss than two-sided over gloo",
                    holds=arm.to_loss_s < other.to_loss_s,
                    numbers=f"{seconds(arm.to_loss_s)} and {seconds(other.to_loss_s)}",
                )


def few_bytes_up(arms: Arms) -> Iterator[Verdict]:
    for mbps, here in arms.items():
        for arm in _voting(here):
            whole = here.get(f"stage {arm.contender.stage}, 32 bits")
            if whole is not None:
                yield Verdict(
                    claim=f"{arm.contender.name}: at {mbps:g} Mbit/s at most 1/{LEAST_SHARE} of float32's bytes up",
                    holds=whole.few.up >= LEAST_SHARE * arm.few.up,
                    numbers=f"1/{whole.few.up / arm.few.up:.1f}",
                )


def _voting(here: Mapping[str, NetworkArm]) -> Iterator[NetworkArm]:
    return (arm for arm in here.values() if arm.contender.bits == 1 and not arm.contender.gloo)


CLAIMS: list[Claim[Arms]] = [few_bytes_up, much_faster_than_gloo, faster_than_two_sided]
