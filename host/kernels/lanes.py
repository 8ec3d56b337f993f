"""Lanes on the wire: 32, 16, 8 or 4 bits each, two's complement or unsigned, big-endian, the first in the high bits.

Knows nothing of what the lanes stand for (compression.codec) and nothing of packets (wire.packet).
"""

from kofn.host.arrays import Values
from kofn.host.errors import CodecError
from kofn.host.kernels.kernel import kernel
from kofn.host.wire.packet import Lanes

WIDTHS = (32, 16, 8, 4)
"""Bits of a lane, by the header's `lanes` code."""


def code_of(width: int) -> Lanes:
    """The header's code of a width; CodecError for a width that no switch sums."""
    if width not in WIDTHS:
        raise CodecError(f"a lane width of {width} bits: {', '.join(map(str, WIDTHS))} are allowed")
    return Lanes(WIDTHS.index(width))


def width_of(code: int) -> int:
    """Bits of a lane of the header's code; CodecError for a code that stands for none."""
    if not 0 <= code < len(WIDTHS):
        raise CodecError(f"lanes of code {code}: 0 to {len(WIDTHS) - 1} are allowed")
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
