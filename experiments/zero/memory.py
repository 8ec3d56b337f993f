"""What workers of sharded trainings keep in memory, by stage, bits and kind, beside the formulas of host.zero.memory.

Each worker is a thread with a model, an optimizer and a ledger of its own, in lockstep; two steps are made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from torch import nn

import kofn.torch
from kofn.config.compress import CompressSection, Residual
from kofn.config.schema import Config
from kofn.experiments.claims import Verdict, lines
from kofn.experiments.tables import Columns, TextTable
from kofn.experiments.zero.lockstep import Lockstep, LockstepCalls, LockstepMean, LockstepSwitch
from kofn.host.collectives.call import Array
from kofn.host.protocol.block_layout import WORD_BITS
from kofn.host.zero.compressed_mean import CompressedMean
from kofn.host.zero.exact_calls import ExactCalls
from kofn.host.zero.memory import expected, not_sharded
from kofn.host.zero.settings import CODECS, ZeroSettings
from kofn.results.memory import KINDS, Memory

WORKERS = (2, 4, 8)

LAYERS, WIDTH = 8, 384
"""Of the perceptron: equal layers, so that stage 3 holds two of eight at a time."""

LAYER = WIDTH * WIDTH + WIDTH

BLOCK = 8192
"""Elements, in 8 bits as in one."""

NEAR = 0.1
"""By so much a kind may be off."""

LEGEND = (
    f"MB of arrays of the worker that keeps most, after two steps of a perceptron with {LAYERS * LAYER:,} parameters in"
    f" {LAYERS} equal layers; off: the kind that is furthest from its formula (host/zero/memory.py); stage 0 is Adam"
    " that is not sharded."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept in a stage, and what the formulas have."""

    workers: int
    stage: int
    bits: int = 32
    residual: Residual = "exact"
    measured: Memory
    formula: Memory

    @property
    def name(self) -> str:
        bits = f", {self.bits} bit{'s' * (self.bits > 1)}" if self.stage else ""
        return f"stage {self.stage}{bits}" + (f", residual {self.residual}" if self.residual != "exact" else "")

    @property
    def off(self) -> tuple[float, str]:
        """The largest share by which a kind misses its formula, and which one."""
        pairs = ((name, getattr(self.measured, name), getattr(self.formula, name)) for name in KINDS)
        return max((abs(found - by) / max(by, 1), name) for name, found, by in pairs)


class LockstepJob:
    """A ZeroJob of one worker in lockstep."""

    def __init__(self, calls: LockstepCalls, mean: LockstepMean | None) -> None:
        self._calls, self._mean = calls, mean

    def connect(self, elements: int, settings: ZeroSettings) -> tuple[ExactCalls, CompressedMean | None]:
        return self._calls, self._mean

    def stepped(self, shared: Array, memory: Memory) -> None:
        """Nobody is told."""


def show_memory(console: Console) -> bool:
    """A table for each number of workers; whether all are near their formulas."""
    verdicts = []
    for workers in WORKERS:
        found = [_not_sharded(workers), *_sharded(workers)]
        console.print(TextTable.of(COLUMNS, found, title=f"{workers} workers"))
        off, kind, name = max((*each.off, each.name) for each in found)
        claim = f"{workers} workers: every kind within {NEAR:.0%} of its formula"
        verdicts.append(Verdict(claim=claim, holds=off <= NEAR, numbers=f"{off:.1%} at most: {kind} of {name}"))
    console.print("\n".join(lines(verdicts)), highlight=False, soft_wrap=True)
    console.print(LEGEND)
    return all(verdict.holds for verdict in verdicts)


COLUMNS: Columns[Kept] = {
    "training": lambda kept: kept.name,
    "parameters": lambda kept: _megabytes(kept.measured.parameters),
    "gradients": lambda kept: _megabytes(kept.measured.gradients),
    "optimizer": lambda kept: _megabytes(kept.measured.optimizer),
    "residuals": lambda kept: _megabytes(kept.measured.residuals),
    "ledger": lambda kept: _megabytes(kept.measured.ledger),
    "in all": lambda kept: _megabytes(kept.measured.total),
    "formula": lambda kept: _megabytes(kept.formula.total),
    "off": lambda kept: f"{kept.off[0]:.1%}",
}


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f}"


def _model() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def _not_sharded(workers: int) -> Kept:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    parameters = [*model.parameters()]
    state = [each for own in optimizer.state.values() for each in own.values() if each.ndim]
    measured = Memory(
        parameters=_size(parameters),
        gradients=_size([each.grad for each in parameters if each.grad is not None]),
        optimizer=_size(state),
    )
    return Kept(workers=workers, stage=0, measured=measured, formula=not_sharded(LAYERS * LAYER))


def _size(tensors: Sequence[torch.Tensor]) -> int:
    return sum(each.nbytes for each in tensors)


def _sharded(workers: int) -> Iterator[Kept]:
    residuals: tuple[Residual, ...] = ("exact", "bfloat16", "int8")
    for stage in (1, 2, 3):
        for bits in (32, 8, 1):
            for residual in residuals if bits < 32 else ("exact",):
                settings = ZeroSettings(stage=stage, bits=bits, freeze_step=1)
                measured = max(_measured(settings, workers, residual), key=lambda memory: memory.total)
                by = expected(settings, LAYERS * LAYER, workers, layer=LAYER, block=BLOCK, residual=residual)
                yield Kept(workers=workers, stage=stage, bits=bits, residual=residual, measured=measured, formula=by)


def _measured(settings: ZeroSettings, workers: int, residual: Residual) -> list[Memory]:
    """Of each worker."""
    team = Lockstep(workers)
    switch = None if settings.bits == 32 else _switch(team, settings, residual)

    def one(rank: int) -> Memory:
        mean = None if switch is None else LockstepMean(switch, rank)
        model, job = _model(), LockstepJob(LockstepCalls(team, rank), mean)
        given = asdict(settings)
        chosen = {name: given[name] for name in ("stage", "bits", "freeze_step")}
        optimizer = kofn.torch.zero(model, job=job, **chosen)
        for _ in range(2):
            model(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
        return optimizer.memory()

    return team.run(one)


def _switch(team: Lockstep, settings: ZeroSettings, residual: Residual) -> LockstepSwitch:
    words = BLOCK * settings.bits // WORD_BITS
    return LockstepSwitch(
        team,
        LAYERS * LAYER,
        job=Config.of({"job": {"workers": team.workers, "words": words}}).job,
        compress=CompressSection(codec=CODECS[settings.bits], residual=residual),
        average="contributors" if settings.votes_on_momentum else "gradients",
        k=team.workers,
        seed=1,
    )
