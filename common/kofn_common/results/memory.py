"""The memory that a worker's training keeps between two steps, by kind."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of arrays, without the interpreter, its libraries and packets on their way."""

    parameters: int = 0  # the model's, and those of the worker's shard if the shard is a copy
    gradients: int = 0  # held until the step, or longer
    optimizer: int = 0  # its state
    residuals: int = 0  # errors of encoding, and gradients that came too late
    ledger: int = 0  # space for the values sent in two iterations, and the accounts

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in KINDS})

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in KINDS)

    @property
    def words(self) -> str:
        """The bytes in MB, as a sum and (by kind)."""
        kinds = "/".join(f"{getattr(self, name) / 1e6:.1f}" for name in KINDS)
        return f"{self.total / 1e6:.1f} MB ({kinds})"


KINDS = tuple(field.name for field in fields(Memory))
