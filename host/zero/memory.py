"""What a worker keeps in memory, by kind, and the formulas of it.

Of P parameters among n workers, in bytes, with Adam:

    kind         not sharded   stage 1                stage 2               stage 3
    parameters   4 P           4 P + 4 P / n          4 P + 4 P / n         4 P / n, and two layers for a time
    gradients    4 P           4 P                    32 bits: one layer    32 bits: one layer
    optimizer    8 P           8 P / n                8 P / n               8 P / n
    residuals    -             fewer than 32 bits: the ledger's

A shard is a copy beside the model's parameters in stages 1 and 2.  With 8 bits and 1 gradients are 4 P in all stages:
they leave as a whole.  With 1 bit stage 1 has the whole momentum, 4 P, and the variance 4 P / n.  The ledger keeps 8
bytes of each element (steps of 2**-40 in 64 bits), and what was sent in two iterations.
"""

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one worker."""

    parameters: int
    gradients: int
    optimizer: int
    residuals: int

    @property
    def total(self) -> int:
        return sum(astuple(self))
