"""Lanes on the wire: 32, 16, 8, 4 bits or 1 bit, two's complement or unsigned, big-endian.

The first lane of a byte is in the byte's high bits. This module knows neither the meaning of lanes (compression.codec)
nor packets (wire.packet).
"""

import numpy as np

from kofn_common.wire.packet import WIDTHS
from kofn_host.arrays import Values
from kofn_host.errors import CodecError
from kofn_host.kernels.kernel import kernel

CODES = range(len(WIDTHS))

VOTES = 1
"""The width of a vote."""


def code_of(width: int) -> int:
    """Return the header's code of a width; CodecError for a width that no switch sums."""
    if width not in WIDTHS:
        raise CodecError(f"a lane's width must be one of {', '.join(map(str, WIDTHS))} bits, got {width}")
    return WIDTHS.index(width)


def width_of(code: int) -> int:
    """Return the width in bits for a header's code; CodecError for an unknown code."""
    if not 0 <= code < len(WIDTHS):
        raise CodecError(f"the code of lanes must be 0 to {len(WIDTHS) - 1}, got {code}")
    return WIDTHS[code]


def pack(lanes: Values, width: int) -> bytes:
    """Pack the low `width` bits of each lane as on the wire, in C order.  CodecError unless lanes fill whole bytes."""
    code_of(width)
    if lanes.size * width % 8:
        raise CodecError(f"lanes of {width} bits must fill whole bytes, got {lanes.size} of them")
    return kernel().pack(lanes, width)


def unpack(data: bytes | memoryview, width: int, *, signed: bool = True) -> Values:
    """Return the lanes of packets' values, shape (bytes * 8 / width,); CodecError unless all lanes are whole."""
    code_of(width)
    if len(data) * 8 % width:
        raise CodecError(f"values must be a whole number of lanes of {width} bits, got {len(data)} bytes")
    return kernel().unpack(data, width, signed=signed)


def unpack_sums(data: bytes | memoryview, width: int, elements: int, blocks: int = 1, *, signed: bool = True) -> Values:
    """Return the lanes of the sums of consecutive blocks, shape (blocks, elements).

    Counts of votes come bit by bit: a block's plane p has bit p of all the block's counts, the lowest plane first.
    CodecError unless all blocks are complete.
    """
    per_block, left = divmod(8 * len(data), blocks * width)
    planes, over = divmod(per_block, elements)
    if left or over or not planes or (planes > 1 and width != VOTES):
        raise CodecError(
            f"{blocks} blocks in lanes of {width} bits must be {blocks * elements * width // 8} bytes"
            f"{' or a multiple' if width == VOTES else ''}, got {len(data)}"
        )
    lanes = unpack(data, width, signed=signed and width != VOTES).reshape(blocks, planes, elements)
    return (
        lanes[:, 0]
        if planes == 1
        else (lanes << np.arange(planes, dtype=np.int32)[:, None]).sum(axis=1, dtype=np.int32)
    )
