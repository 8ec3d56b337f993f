"""Ledger for tests: of one codec, and what an iteration sends of them."""

from typing import Any

import numpy as np

from kofn.host.arrays import Fixed, Integers
from kofn.host.compression.codec import Codec, statistics
from kofn.host.compression.ledger import Ledger
from kofn.host.compression.ledger_storage import LedgerStorage
from kofn.host.kernels.lanes import code_of, unpack


def ledger_of(storage: LedgerStorage, codec: Codec, rank: int = 0, **given: Any) -> Ledger:
    """A worker's that knows one codec."""
    return Ledger(storage, rank, {code_of(codec.width): codec}, **given)


def send(ledger: Ledger, iteration: int, codec: Codec, blocks: Integers | None = None, part: int = 0) -> None:
    """Encode these blocks (None: all) at the worker's own scale."""
    chosen = np.arange(ledger.blocks) if blocks is None else blocks
    scale = codec.scale(*statistics(ledger.pending))
    packed = ledger.sending(iteration, chosen, code_of(codec.width), scale, part)
    _check_packed(ledger, packed, part)


def send_again(ledger: Ledger, block: int, iteration: int, codec: Codec, scale: int, part: int = 0) -> None:
    """Encode one block at another scale."""
    scales = np.full(ledger.blocks, scale)
    packed = ledger.send_again(np.array([block]), iteration, code_of(codec.width), scales, part)
    assert list(packed) == [block]
    _check_packed(ledger, packed, part)


def sent_weight(ledger: Ledger, block: int, part: int = 0) -> int:
    """Of the gradients that a contribution says that it brings."""
    ((_, _, weight),) = ledger.noted_of([block], part)
    return weight


def sent_values(ledger: Ledger, codec: Codec, block: int, part: int = 0) -> Fixed:
    """What a contribution stands for, shape (elements,)."""
    ((scale, lanes, _),) = ledger.noted_of([block], part)
    assert lanes == code_of(codec.width)
    numbers = unpack(ledger.noted(np.array([block]), part)[block], codec.width, signed=codec.signed)
    return codec.decode(numbers[None], np.array([[scale]]), np.ones((1, 1), np.int64))[0]


def _check_packed(ledger: Ledger, packed: dict[int, bytes], part: int) -> None:
    """What leaves is what is noted."""
    assert packed == ledger.noted(np.array(list(packed), int), part)
