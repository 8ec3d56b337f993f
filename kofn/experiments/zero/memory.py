"""The memory of workers in sharded trainings, measured and by the formulas of kofn_host.zero.memory."""

import subprocess
import sys
from dataclasses import dataclass

import msgspec
from rich.console import Console

from kofn.experiments.claims import Verdict, lines
from kofn.experiments.tables import Columns, TextTable
from kofn.experiments.zero.contenders import stage_name
from kofn.run.display import say
from kofn_common.config.errors import ConfigError
from kofn_common.results.memory import KINDS, KeptMemory, Memory
from kofn_host.zero import ZeroSettings, expected, not_sharded

WORKERS = (2, 4, 8)

LAYERS, WIDTH = 8, 384
"""The number and the width of the perceptron's layers, which are equal; stage 3 holds two layers at a time."""

BLOCK = 8192
"""The number of elements of a block, both in 8 bits and in 1 bit."""

NEAR = 0.1
"""The permitted error of a kind of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """The measured memory of a training, and the formulas' memory."""

    kept: KeptMemory
    formula: Memory

    @property
    def name(self) -> str:
        kept = self.kept
        stage = stage_name(kept.stage, kept.bits) if kept.stage else "stage 0"
        return stage + (f", residual {kept.residual}" if kept.residual != "exact" else "")

    @property
    def off(self) -> tuple[float, str]:
        """The largest error of a kind of memory, as a share of the formula's value, and the kind."""
        pairs = ((name, getattr(self.kept.memory, name), getattr(self.formula, name)) for name in KINDS)
        return max((abs(found - by) / max(by, 1), name) for name, found, by in pairs)


def show_memory(console: Console) -> bool:
    """Print a table for each number of workers; return whether all memory is near the formulas. Raise ConfigError
    without PyTorch."""
    elements, verdicts = LAYERS * _layer(), []
    for workers in WORKERS:
        rows = [MemoryRow(kept=kept, formula=_formula(kept, elements, workers)) for kept in _measured(workers)]
        console.print(TextTable.of(COLUMNS, rows, title=f"{workers} workers"))
        off, kind, name = max((*row.off, row.name) for row in rows)
        claim = f"{workers} workers: every kind within {NEAR:.0%} of its formula"
        verdicts.append(Verdict(claim=claim, holds=off <= NEAR, numbers=f"{off:.1%} at most: {kind} of {name}"))
    say(console, "\n".join(lines(verdicts)))
    console.print(
        f"MB of arrays of the worker that keeps most, after two steps of a perceptron with {elements:,} parameters in"
        f" {LAYERS} equal layers; off: error of the kind of memory that is furthest from its formula"
        " (host/kofn_host/zero/memory.py); stage 0 is Adam without shards."
    )
    return all(verdict.holds for verdict in verdicts)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f}"


COLUMNS: Columns[MemoryRow] = {
    "training": lambda row: row.name,
    "parameters": lambda row: _megabytes(row.kept.memory.parameters),
    "gradients": lambda row: _megabytes(row.kept.memory.gradients),
    "optimizer": lambda row: _megabytes(row.kept.memory.optimizer),
    "residuals": lambda row: _megabytes(row.kept.memory.residuals),
    "ledger": lambda row: _megabytes(row.kept.memory.ledger),
    "in all": lambda row: _megabytes(row.kept.memory.total),
    "formula": lambda row: _megabytes(row.formula.total),
    "off": lambda row: f"{row.off[0]:.1%}",
}


def _layer() -> int:
    return WIDTH * WIDTH + WIDTH


def _measured(workers: int) -> list[KeptMemory]:
    """Measure in a separate process, which loads PyTorch."""
    numbers = map(str, (workers, LAYERS, WIDTH, BLOCK))
    command = [sys.executable, "-m", "kofn_torch.scripts.sharded_memory", *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(command[1:])} ended with {done.returncode}: its message is above")
    return msgspec.json.decode(done.stdout, type=list[KeptMemory])


def _formula(kept: KeptMemory, elements: int, workers: int) -> Memory:
    if kept.stage == 0:
        return not_sharded(elements)
    settings = ZeroSettings(stage=kept.stage, bits=kept.bits, residual=kept.residual)
    return expected(settings, elements, workers, layer=_layer(), block=BLOCK)
