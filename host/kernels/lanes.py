"""Lanes on the wire: 32, 16, 8, 4 bits or one each, two's complement or unsigned, big-endian, the first one highest.

Knows nothing of what the lanes stand for (compression.codec) and nothing of packets (wire.packet).
"""

import numpy as np

from kofn.host.arrays import Values
from kofn.host.errors import CodecError
from kofn.host.kernels.kernel import kernel

WIDTHS = (32, 16, 8, 4, 1)
"""Bits of a lane, by the header's `lanes` code.  A lane of one bit is a vote, and the sum of votes their count."""

CODES = range(len(WIDTHS))

VOTES = 1
"""The width of a vote."""


def code_of(width: int) -> int:
    """The header's code of a width; CodecError for a width that no switch sums."""
    if width not in WIDTHS:
        raise CodecError(f"a lane's width must be one of {', '.join(map(str, WIDTHS))} bits, got {width}")
    return WIDTHS.index(width)


def width_of(code: int) -> int:
    """Bits of a lane of the header's code; CodecError for a code that stands for none."""
    if not 0 <= code < len(WIDTHS):
        raise CodecError(f"the code of lanes must be 0 to {len(WIDTHS) - 1}, got {code}")
    return WIDTHS[code]


def pack(lanes: Values, width: int) -> bytes:
    """Lanes as on the wire, in C order; of each its low `width` bits.  CodecError unless they fill whole bytes."""
    code_of(width)
    if lanes.size * width % 8:
        raise CodecError(f"{lanes.size} lanes of {width} bits: whole bytes are needed")
    return kernel().pack(lanes, width)


def unpack(data: bytes | memoryview, width: int, *, signed: bool = True) -> Values:
    """The lanes of a packet's values or of several one after another, shape (bytes * 8 / width,); as pack()."""
    code_of(width)
    if len(data) * 8 % width:
        raise CodecError(f"{len(data)} bytes: a whole number of lanes of {width} bits is needed")
    return kernel().unpack(data, width, signed=signed)


def unpack_sums(data: bytes | memoryview, width: int, elements: int, blocks: int = 1, *, signed: bool = True) -> Values:
    """The lanes of so many blocks' sums, one after another, shape (blocks, elements).

    Votes come as planes: bit p of all counts of a block in its plane p, the lowest first.  CodecError unless all blocks
    have all elements.
    """
    per_block, left = divmod(8 * len(data), blocks * width)
    planes, over = divmod(per_block, elements)
    if left or over or not planes or (planes > 1 and width != VOTES):
        raise CodecError(
            f"{blocks} blocks in lanes of {width} bits are {len(data)} bytes: {blocks * elements * width // 8} are"
            f" needed{', or a multiple of it' if width == VOTES else ''}"
        )
    lanes = unpack(data, width, signed=signed and width != VOTES).reshape(blocks, planes, elements)
    return (
        lanes[:, 0]
        if planes == 1
        else (lanes << np.arange(planes, dtype=np.int32)[:, None]).sum(axis=1, dtype=np.int32)
    )
