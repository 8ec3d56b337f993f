"""The blocking of [[straggler]] and [[shock]] of all workers of several seeds at once, equal to that of each `Drawn`.

The drawn numbers of the current DRAWN iterations are kept: 2 KiB a worker and seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn_common.config.schema import Config
from kofn_common.config.stragglers import ShockSection, StragglerSection
from kofn_host.arrays import Floats64, Integers
from kofn_host.workload.blocking_laws import DRAWN, NEVER, quantiles, uniforms

SOME = 8
"""Iterations whose numbers are copied at once, so that later reads are consecutive in memory."""


class DrawnTogether:
    """Blocking times (seeds, workers); the caller must ask for every iteration, in ascending order."""

    def __init__(self, config: Config, seeds: Sequence[int]) -> None:
        self._workers, self._seeds = config.job.workers, seeds
        self._compute_s = config.model.compute_ms / 1000
        self._shift_every = config.run.shift_every
        given = sorted(reversed(config.straggler), key=lambda entry: (entry.from_iteration, entry.mean_ms))
        self._entries = [NEVER, *given]  # of a worker's begun entries, the last one applies
        self._uniforms: dict[int, tuple[int, Floats64]] = {}  # by batch: the part, and (seeds, workers, DRAWN)
        self._near: dict[int, tuple[int, Floats64]] = {}  # by batch: SOME iterations' numbers, (SOME, seeds, workers)
        self._bursts = [_Bursts(entry) for entry in given if entry.law == "bursty"]
        self._roles: tuple[tuple[int, int], list[EntryWorkers]] = ((-1, 0), [])
        self._shocks = [_Shocks(config, shock, at, seeds) for at, shock in enumerate(config.shock)]

    def compute_s(self, iteration: int) -> Floats64:
        """Return the least times of the forward and backward pass (1, workers)."""
        found = np.full((1, self._workers), self._compute_s)
        for role in self._current(iteration):
            if role.entry.compute_ms is not None:
                found[:, role.ranks] = role.entry.compute_ms / 1000
        return found

    def blocking_s(self, iteration: int, begun_s: Floats64, batch: int = 0) -> Floats64:
        """Return the blocking of gradients that begin `begun_s` (seeds, workers) after the training's start."""
        levels = self._levels(iteration, batch)
        found = np.zeros(levels.shape)
        for role in self._current(iteration):
            if role.entry.law != "bursty":
                found[:, role.ranks] = quantiles(role.entry, levels[:, role.ranks])
        for bursts in self._bursts:
            if batch == 0 and iteration >= bursts.entry.from_iteration:
                bursts.move(iteration, levels)
            for role in self._current(iteration):
                if role.entry is bursts.entry:
                    found[:, role.ranks] = bursts.blocking_s[:, role.ranks]
        for shocks in self._shocks:
            shocks.add(found, begun_s)
        return found

    def _levels(self, iteration: int, batch: int) -> Floats64:
        """Return every worker's uniform number for this gradient (seeds, workers)."""
        some, index = divmod(iteration, SOME)
        if self._near.get(batch, (-1,))[0] != some:
            part, first = divmod(some * SOME, DRAWN)
            near = self._part(part, batch)[:, :, first : first + SOME]
            self._near[batch] = some, np.ascontiguousarray(np.moveaxis(near, 2, 0))
        return np.asarray(self._near[batch][1][index])

    def _part(self, part: int, batch: int) -> Floats64:
        """Return every worker's uniform numbers of DRAWN iterations (seeds, workers, DRAWN)."""
        drawn, levels = self._uniforms.get(batch, (-1, np.zeros(0)))
        if part != drawn:
            if not levels.size:
                levels = np.empty((len(self._seeds), self._workers, DRAWN))
            for row, seed in zip(levels, self._seeds, strict=True):
                for rank in range(self._workers):
                    uniforms((seed, rank), part, batch).random(out=row[rank])
            self._uniforms[batch] = part, levels
        return levels

    def _current(self, iteration: int) -> "list[EntryWorkers]":
        """Return the entries that apply in this iteration, with the workers to which they apply."""
        shifts = (iteration - 1) // self._shift_every if self._shift_every else 0
        begun = sum(entry.from_iteration <= iteration for entry in self._entries)
        if self._roles[0] != (begun, shifts):
            of_role = np.zeros(self._workers, np.int64)
            for at, entry in enumerate(self._entries[:begun]):
                of_role[list(entry.workers)] = at
            of_rank = np.roll(of_role, shifts)
            current = np.unique(of_rank)
            self._roles = (
                (begun, shifts),
                [
                    EntryWorkers(
                        entry=self._entries[at],
                        ranks=slice(None) if len(current) == 1 else np.flatnonzero(of_rank == at),
                    )
                    for at in current
                ],
            )
        return self._roles[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryWorkers:
    """An entry and the workers to which it applies."""

    entry: StragglerSection
    ranks: slice | Integers


class _Bursts:
    """The bursts of an entry.

    `blocking_s`, (seeds, workers): the blocking in the current iteration, as if the entry applied to all workers.
    """

    def __init__(self, entry: StragglerSection) -> None:
        self.entry = entry
        self.blocking_s: Floats64 = np.zeros((1, 1))

    def move(self, iteration: int, levels: Floats64) -> None:
        """Begin and end bursts by the workers' uniform numbers of the next iteration (seeds, workers)."""
        share, ends = self.entry.burst_share, 1 / self.entry.burst_iterations
        likely = np.where(self.blocking_s > 0, 1 - ends, ends * share / (1 - share))
        if iteration == self.entry.from_iteration:
            likely = np.asarray(share)
        self.blocking_s = np.where(levels < likely, self.entry.mean_ms / 1000 / share, 0.0)


class _Shocks:
    """The shocks of an entry at all of its workers."""

    def __init__(self, config: Config, shock: ShockSection, at: int, seeds: Sequence[int]) -> None:
        workers = config.job.workers
        self._shock, self._ranks = shock, np.array(shock.workers, np.int64)
        self._draws = [shock.draws(rank, config.job) for rank in shock.workers]
        groups = [draws[0] if draws else 0 for draws in self._draws]
        _, self._first, self._group = np.unique(groups, return_index=True, return_inverse=True)
        self._seeds = [(seed, workers + at) for seed in seeds]
        self._struck: dict[int, npt.NDArray[np.bool_]] = {}  # by part: (seeds, groups, DRAWN)

    def add(self, blocking_s: Floats64, begun_s: Floats64) -> None:
        """Add the blocking of gradients that begin at these times, both (seeds, workers)."""
        part, index = np.divmod((begun_s[:, self._ranks] / (self._shock.for_ms / 1000)).astype(np.int64), DRAWN)
        struck = np.zeros(part.shape, np.bool_)
        parts = np.unique(part).tolist()
        for number in parts:
            row, column = np.nonzero(part == number)
            struck[row, column] = self._of_part(number)[row, self._group[column], index[row, column]]
        self._struck = {number: self._struck[number] for number in parts}
        blocking_s[:, self._ranks] += self._shock.blocking_ms / 1000 * struck

    def _of_part(self, part: int) -> npt.NDArray[np.bool_]:
        if part not in self._struck:
            self._struck[part] = (
                np.array(
                    [
                        [uniforms((*seed, *self._draws[first]), part).random(DRAWN) for first in self._first.tolist()]
                        for seed in self._seeds
                    ]
                )
                < self._shock.share
            )
        return self._struck[part]
