"""The text and JSON of the trainings of `kofn experiment zero`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kofn.experiments.statistics import Spread
from kofn.experiments.tables import Columns, TextTable, count, shown, span
from kofn.experiments.zero.contenders import REFERENCE
from kofn.experiments.zero.training import Learned

NEAR = 0.005
"""The share by which a loss may be above the reference's loss."""

LEGEND = (
    "loss: held-out loss after the last step, median over the seeds; x 32 bits: loss over the loss of uncompressed Adam"
    " with the same seed; steps: until the loss is within 0.5 % of the last loss of uncompressed Adam; within 0.5 %:"
    " number of seeds whose last loss is that low; lost: L2 norm of the values that were discarded to keep residuals in"
    " fewer bits, over the gradients' norm; too large: share of blocks whose quantisation step was too large for the"
    " residual to shrink, from the seed with the largest share; sound: all workers have the same parameters, and every"
    " ledger is conserved. With 32 bits all stages are the same training."
)

Trainings = Mapping[tuple[str, int], Learned]
"""Results by contender and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroArm:
    """A contender's trainings, and the reference's trainings with the same seeds."""

    name: str
    own: Sequence[Learned]
    reference: Sequence[Learned]

    @property
    def losses(self) -> list[float]:
        return [_last(learned) for learned in self.own]

    @property
    def ratios(self) -> list[float]:
        return [_last(learned) / _last(reference) for learned, reference in self._pairs]

    @property
    def steps(self) -> list[float]:
        """Steps to the reference's last loss; infinite if this loss is never reached."""
        return [_reached(learned, _last(reference)) for learned, reference in self._pairs]

    @property
    def _pairs(self) -> Iterable[tuple[Learned, Learned]]:
        return zip(self.own, self.reference, strict=True)

    @property
    def near(self) -> int:
        return sum(ratio <= 1 + NEAR for ratio in self.ratios)

    @property
    def sound(self) -> bool:
        return all(learned.alike is not False and learned.conserved is not False for learned in self.own)


def arms(trainings: Trainings) -> list[ZeroArm]:
    """Return the contenders' arms, with the seeds that the reference also has."""
    names = list(dict.fromkeys(name for name, _ in trainings))
    seeds = {
        name: [seed for other, seed in trainings if other == name and (REFERENCE, seed) in trainings] for name in names
    }
    return [
        ZeroArm(
            name=name,
            own=[trainings[name, seed] for seed in seeds[name]],
            reference=[trainings[REFERENCE, seed] for seed in seeds[name]],
        )
        for name in names
        if seeds[name]
    ]


def table(title: str, found: Sequence[ZeroArm]) -> TextTable:
    columns: Columns[ZeroArm] = {
        "training": lambda arm: arm.name,
        "loss": lambda arm: shown(Spread.of(arm.losses).median, "{:.4f}"),
        "x 32 bits": lambda arm: shown(Spread.of(arm.ratios).median, "{:.3f}"),
        "min .. max": lambda arm: span(Spread.of(arm.ratios), lambda value: shown(value, "{:.3f}")),
        "steps": lambda arm: steps_of(Spread.of(arm.steps).median),
        "within 0.5 %": lambda arm: f"{arm.near} of {len(arm.own)}",
        "lost": lambda arm: _share(arm, "lost"),
        "too large": lambda arm: _share(arm, "expanding"),
        "sound": lambda arm: "yes" if arm.sound else "NO",
    }
    return TextTable.of(columns, found, title=title)


def _share(arm: ZeroArm, name: str) -> str:
    """Return the greatest share of any seed, as text."""
    known = [value for learned in arm.own if (value := getattr(learned, name)) is not None]
    return f"{max(known):.2%}" if known else "-"


def steps_of(value: float) -> str:
    return count(value, never="never")


def _last(learned: Learned) -> float:
    loss = learned.losses[max(learned.losses)]
    return math.inf if loss is None else loss


def _reached(learned: Learned, loss: float) -> float:
    near = (step for step, value in learned.losses.items() if value is not None and value <= loss * (1 + NEAR))
    return next(near, math.inf)
