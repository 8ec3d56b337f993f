"""Books for tests: of one codec, and what an iteration sends of them."""

from typing import Any

import numpy as np

from host.compress import Codec, Fixed, statistics
from host.lanes import code_of, unpack
from host.pages import Integers, Pages
from host.residual import Residual


def books_of(pages: Pages, codec: Codec, rank: int = 0, **given: Any) -> Residual:
    """A worker's that knows one codec."""
    return Residual(pages, rank, {code_of(codec.width): codec}, **given)


def send(residual: Residual, iteration: int, codec: Codec, blocks: Integers | None = None, part: int = 0) -> None:
    """Encode these blocks (None: all) at the worker's own scale."""
    chosen = np.arange(residual.blocks) if blocks is None else blocks
    scale = codec.scale(*statistics(residual.pending))
    packed = residual.sending(iteration, chosen, code_of(codec.width), scale, part)
    _check_packed(residual, packed, part)


def send_again(residual: Residual, block: int, iteration: int, codec: Codec, scale: int, part: int = 0) -> None:
    """Encode one block at another scale."""
    scales = np.full(residual.blocks, scale)
    packed = residual.send_again(np.array([block]), iteration, code_of(codec.width), scales, part)
    assert list(packed) == [block]
    _check_packed(residual, packed, part)


def sent_weight(residual: Residual, block: int, part: int = 0) -> int:
    """Of the gradients that a contribution says that it brings."""
    ((_, _, weight),) = residual.noted_of([block], part)
    return weight


def sent_values(residual: Residual, codec: Codec, block: int, part: int = 0) -> Fixed:
    """What a contribution stands for, shape (elements,)."""
    ((scale, lanes, _),) = residual.noted_of([block], part)
    assert lanes == code_of(codec.width)
    numbers = unpack(residual.noted(np.array([block]), part)[block], codec.width, signed=codec.signed)
    return codec.decode(numbers[None], np.array([[scale]]), np.ones((1, 1), np.int64))[0]


def _check_packed(residual: Residual, packed: dict[int, bytes], part: int) -> None:
    """What leaves is what is noted."""
    assert packed == residual.noted(np.array(list(packed), int), part)
