"""What a worker keeps in memory of its training between two steps, by kind."""

from dataclasses import dataclass, fields
from typing import Self

from kofn.config.compress import Residual


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of arrays; what an interpreter, its libraries and packets on their way take is not among them.

    residuals: what encoding left over, or came too late.  ledger: room for what was sent in two iterations, and the
    books.
    """

    parameters: int = 0  # of the model, and of the worker's shard where that is a copy
    gradients: int = 0  # held until the step, or longer
    optimizer: int = 0  # its state
    residuals: int = 0  # what encoding left over, or came too late
    ledger: int = 0  # room for what was sent in two iterations, and the books

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in KINDS})

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in KINDS)

    @property
    def words(self) -> str:
        """In MB, all and (by kind)."""
        kinds = "/".join(f"{getattr(self, name) / 1e6:.1f}" for name in KINDS)
        return f"{self.total / 1e6:.1f} MB ({kinds})"


KINDS = tuple(field.name for field in fields(Memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMemory:
    """Of a sharded training's worker; stage 0: Adam that is not sharded."""

    stage: int
    bits: int
    residual: Residual
    memory: Memory
