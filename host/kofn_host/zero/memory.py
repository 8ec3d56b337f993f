"""Formulas for a worker's memory between two steps, by the kind of data.

For P parameters and n workers, in bytes:

    kind         not sharded   stage 1         stage 2                stage 3
    parameters   4 P           4 P + 4 P / n   4 P + 4 P / n          4 P / n + two layers during their passes
    gradients    4 P           4 P             32 bits: 0             32 bits: 0
    optimizer    8 P           8 P / n         8 P / n                8 P / n
    residuals    0             fewer than 32 bits: 8 P; 2 P as bfloat16, P as int8
    ledger       0             fewer than 32 bits: contributions of two steps, P * bits / 4; 144 per block

In stages 1 and 2 a shard is a copy in addition to the model's parameters.  With fewer than 32 bits gradients take 4 P
in all stages, because a gradient leaves as a whole.  With 1 bit, stage 1 has the whole momentum, 4 P, and the shard's
variance, 4 P / n; LAMB has a second variance, 4 P / n, once the first variance is frozen.  Exact residuals are
multiples of 2**-40 in 64 bits.
"""

from collections.abc import Mapping

from kofn_common.config.compress import Residual
from kofn_common.results.memory import Memory
from kofn_host.zero.settings import ZeroSettings

RESIDUAL_BYTES: Mapping[Residual, int] = {"exact": 8, "bfloat16": 2, "int8": 1}
"""Bytes of an element's residual."""

BOOKS = 144
"""Bytes of a block's records."""


def expected(settings: ZeroSettings, elements: int, workers: int, *, layer: int, block: int) -> Memory:
    """Return a worker's memory; `layer`: elements of the largest layer; `block`: elements of a block."""
    whole, shard = 4 * elements, 4 * -(-elements // workers)
    few, momentum = settings.bits < 32, whole if settings.votes_on_momentum else shard
    variances = 2 if settings.bits == 1 and settings.optimizer == "lamb" else 1
    return Memory(
        parameters=shard + (2 * 4 * layer if settings.stage == 3 else whole),
        gradients=whole if few or settings.stage == 1 else 0,
        optimizer=momentum + variances * shard,
        residuals=RESIDUAL_BYTES[settings.residual] * elements if few else 0,
        ledger=2 * elements * settings.bits // 8 + BOOKS * -(-elements // block) if few else 0,
    )


def not_sharded(elements: int) -> Memory:
    """Return a worker's memory with Adam, without sharding."""
    return Memory(parameters=4 * elements, gradients=4 * elements, optimizer=8 * elements)
