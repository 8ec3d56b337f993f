"""Ledgers for tests: with one codec, their sent values, and sums as results."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.arrays import Fixed, Floats, Integers, Values
from kofn_host.compression.codec import UNIT, Codec, check, statistics
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import Gradient, checksums
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.kernels.lanes import VOTES, code_of, pack, unpack
from kofn_host.protocol.instructions import Packed
from kofn_host.protocol.results import BlockId, BlockResults, Result


def to_fixed(gradient: Floats) -> Fixed:
    """Return a gradient in units of 2**-40, same shape, as the ledger has it."""
    check(gradient)
    return np.rint(gradient.astype(np.float64) / UNIT).astype(np.int64)


def ledger_of(storage: LedgerStorage, codec: Codec, rank: int = 0, **given: Any) -> Ledger:
    """Return a worker's ledger that knows one codec."""
    return Ledger(storage, rank, {code_of(codec.width): codec}, **given)


def add(
    ledger: Ledger,
    gradient: Floats,
    iteration: int,
    blocks: Integers | None = None,
    *,
    batch: int = 0,
    current: int | None = None,
) -> None:
    """Enter these blocks of a gradient (None: all)."""
    chosen = np.arange(ledger.blocks) if blocks is None else np.ascontiguousarray(blocks, np.int64)
    ledger.enter(Gradient.of(gradient, iteration, batch=batch, current=current), chosen)


def send(ledger: Ledger, iteration: int, codec: Codec, blocks: Integers | None = None, part: int = 0) -> None:
    """Encode these blocks (None: all) at the worker's own scale."""
    chosen = np.arange(ledger.blocks) if blocks is None else blocks
    scale = codec.scale(*statistics(ledger.residual.pending))
    ledger.sending(iteration, chosen, code_of(codec.width), scale, part)


def send_again(ledger: Ledger, block: int, iteration: int, codec: Codec, scale: int, part: int = 0) -> None:
    """Encode one block at another scale."""
    scales = np.full(ledger.blocks, scale)
    ledger.send_again(np.array([block]), iteration, code_of(codec.width), scales, part)


def noted(ledger: Ledger, block: int, part: int = 0) -> Packed:
    """Return the last sent contribution to a block."""
    ((_, packed),) = ledger.noted([block], part)
    return packed


def sent_weight(ledger: Ledger, block: int, part: int = 0) -> int:
    """Return the weight that a contribution states."""
    return noted(ledger, block, part).weight


def sent_values(ledger: Ledger, codec: Codec, block: int, part: int = 0) -> Fixed:
    """Return the values that a contribution carries, shape (elements,)."""
    sent = noted(ledger, block, part)
    assert sent.lanes == code_of(codec.width)
    numbers = unpack(sent.values, codec.width, signed=codec.signed)
    return codec.decode(numbers[None], np.array([[sent.scale]]), np.ones((1, 1), np.int64))[0]


def checksums_of(ledger: Ledger, values: Fixed) -> Integers:
    """Return the ledger's checksums of values (elements,), which are 0 beyond them."""
    padded = np.zeros_like(ledger.residual.pending)
    padded.reshape(-1)[: values.size] = values
    return checksums(padded)


def sums_of(blocks: Sequence[bytes]) -> BlockResults:
    """Results of blocks 0, 1, ... with these values."""
    return BlockResults.of(
        [Result(BlockId(1, block), 0, 0, 1, 1, WEIGHT_UNIT, 1, values) for block, values in enumerate(blocks)]
    )


def packed_sums(total: Values, width: int, planes: int) -> bytes:
    """Return sums of blocks (B, L) as a switch answers with them: lanes, or `planes` bit planes of votes a block."""
    if width != VOTES:
        return pack(total, width)
    return pack(total[:, None] >> np.arange(planes, dtype=np.int32)[:, None] & 1, VOTES)
