"""Pieces of a gradient: a threshold decides which layers are merged and which are cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kofn_host.schedule.families import PassSchedule
from kofn_host.schedule.layers import Layer


@dataclass(frozen=True, slots=True)
class Piece:
    """Ranges of parameters of these layers that leave together; a piece of a higher `level` leaves first."""

    layers: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    level: int

    @property
    def elements(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


def partition(layers: Sequence[Layer], schedule: PassSchedule) -> list[Piece]:
    """Return the pieces of a gradient in the order in which their last weight gradients are computed.

    A layer with fewer elements than the threshold is merged with the next computed layers until the threshold is
    reached; the merged layers have the level of the layer that is computed last.  If the family cuts, merged layers
    with more elements than the threshold are cut into pieces of at most the threshold.
    """
    computed = [step.layer for step in schedule.order(len(layers)) if step.kind == "weight"]
    pieces, run = [], list[int]()
    for layer in computed:
        run.append(layer)
        if sum(layers[merged].elements for merged in run) >= schedule.threshold or layer == computed[-1]:
            pieces += _pieces(layers, run, schedule)
            run = []
    return pieces


def distinct(layers: Sequence[Layer], schedules: Sequence[PassSchedule]) -> list[PassSchedule]:
    """Return the schedules whose passes and pieces differ from those of earlier schedules; all if `layers` is empty."""
    if not layers:
        return list(schedules)
    found = dict[object, PassSchedule]()
    for schedule in schedules:
        family = (schedule.family.overlaps, schedule.family.by_layer)
        order, pieces = tuple(schedule.order(len(layers))), tuple(partition(layers, schedule))
        found.setdefault((family, order, pieces), schedule)
    return list(found.values())


def _pieces(layers: Sequence[Layer], run: Sequence[int], schedule: PassSchedule) -> list[Piece]:
    """Return the pieces of merged layers, with the level of the last computed layer; layer 0 has the highest level."""
    level = len(layers) - run[-1] if schedule.family.prioritised else 0
    ranges = [(layers[layer].begin, layers[layer].end) for layer in run]
    if not schedule.family.cuts:
        return [Piece(tuple(run), tuple(ranges), level)]
    pieces, size = [], sum(end - begin for begin, end in ranges)
    count = -(-size // schedule.threshold)
    for begin, end in pairwise([size * number // count for number in range(count + 1)]):
        cut = _cut(run, ranges, begin, end)
        pieces.append(Piece(tuple(layer for layer, _ in cut), tuple(part for _, part in cut), level))
    return pieces


def _cut(
    run: Sequence[int], ranges: Sequence[tuple[int, int]], begin: int, end: int
) -> list[tuple[int, tuple[int, int]]]:
    """Return elements `begin` to `end` of the concatenated ranges, with their layers."""
    cut, at = [], 0
    for layer, (first, last) in zip(run, ranges, strict=True):
        low, high = max(begin, at), min(end, at + last - first)
        if low < high:
            cut.append((layer, (first + low - at, first + high - at)))
        at += last - first
    return cut
