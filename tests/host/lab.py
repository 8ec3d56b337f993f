"""Books for tests: of one codec, and what an iteration sends of them."""

from typing import Any

import numpy as np

from host.compress import Codec, statistics
from host.lanes import code_of, pack
from host.pages import Integers, Pages
from host.residual import Residual


def books_of(pages: Pages, codec: Codec, rank: int = 0, **given: Any) -> Residual:
    """A worker's that knows one codec."""
    return Residual(pages, rank, {code_of(codec.width): codec}, **given)


def send(residual: Residual, iteration: int, codec: Codec, blocks: Integers | None = None) -> None:
    """Encode these blocks (None: all) at the worker's own scale."""
    chosen = np.arange(len(residual.sent)) if blocks is None else blocks
    packed = residual.sending(iteration, chosen, code_of(codec.width), codec.scale(*statistics(residual.pending)))
    _check_packed(residual, codec, packed)


def send_again(residual: Residual, block: int, iteration: int, codec: Codec, scale: int) -> None:
    """Encode one block at another scale."""
    scales = np.full(len(residual.sent), scale)
    packed = residual.send_again(np.array([block]), iteration, code_of(codec.width), scales)
    assert list(packed) == [block]
    _check_packed(residual, codec, packed)


def sent_gradients(residual: Residual, block: int) -> int:
    """How many gradients a block's contribution says that it brings."""
    ((_, _, gradients),) = residual.noted_of([block])
    return gradients


def _check_packed(residual: Residual, codec: Codec, packed: dict[int, bytes]) -> None:
    """What leaves is what is noted."""
    assert packed == {block: pack(residual.sent[block], codec.width) for block in packed}
    assert packed == residual.noted(np.array(list(packed), int))
