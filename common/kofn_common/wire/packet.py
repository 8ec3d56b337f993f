"""The packet format: one table of fields, and the fast codec derived from it.

`KofnHeader` is the only description of the header outside of P4 (docs/reference/protocol.md says what each field
means): `wire.scapy_layer` makes the Scapy layer from it, `wire.header_text` the C header, and a test compares it with
kofn_h in p4c's output.  This module knows nothing of sockets, slots or what the values mean.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Annotated, NamedTuple, get_type_hints

import numpy as np

from kofn_common.wire.errors import ChecksumError, WireError
from kofn_common.wire.sizes import PARTS, RACK_WORKERS_MAX, RACKS_MAX, WEIGHT_UNIT, WORDS_MAX

SERVICE = "10.0.0.254"
"""The switch's service address; mininet/topology.py, which imports nothing of kofn, repeats it."""

PORT = 0x4B4E
"""UDP port of the switch's service address and of every worker."""

VERSION = 4
FORWARDED_PORT = PORT + 1
"""The port of traffic between hosts: the switch handles packets to PORT itself, and forwards packets to all other
ports."""

EVERYONE = 65535
"""`recipient` of a block whose result goes to all workers."""

WORD_BYTES = 256
WORD_LANES = WORD_BYTES // 4
"""32-bit lanes of a word."""

WORD_BITS = 8 * WORD_BYTES

FRAME_BYTES = 42
"""Bytes of the Ethernet, IPv4 and UDP headers, which links count."""


class Kind(IntEnum):
    """kind_t of p4src/headers.p4: two kinds of requests, four of answers, and one that only leaf switches get."""

    CONTRIBUTE = 0
    PULL = 1
    RESULT = 2
    LATE = 3
    STALE = 4
    FORMAT_MISMATCH = 5
    ADDED = 6


class Flag(IntEnum):
    """Values of `flags`. (In a CONTRIBUTE, `flags` may also contain 1 + a code of Lanes.)"""

    OTHER_WORDS = 1
    """In FORMAT_MISMATCH: the slot's block has another number of words, hence other lanes."""

    AGAIN = 8
    """In a request: the request is a retransmission.  In a RESULT: the packet that closed the block was a
    retransmission. In a LATE: the request that it answers was a retransmission."""


class Lanes(IntEnum):
    """The codes of lane widths, and of votes."""

    BITS_32 = 0
    BITS_16 = 1
    BITS_8 = 2
    BITS_4 = 3
    VOTES = 4
    """One bit per element.  The sum counts the ones, in planes: plane p has bit p of all counts, the lowest first."""


WIDTHS = (32, 16, 8, 4, 1)
"""Widths of lanes in bits; the index is the code of Lanes.  A lane of 1 bit is a vote; votes are counted."""


class KofnHeader(NamedTuple):
    """The bytes before the values: fields in wire order, big-endian, each with its bits.

    encode() fills in `checksum`.
    """

    version: Annotated[int, 4] = VERSION
    kind: Annotated[int, 4] = Kind.CONTRIBUTE
    job: Annotated[int, 8] = 0
    worker: Annotated[int, 8] = 0
    rack: Annotated[int, 8] = 0
    recipient: Annotated[int, 16] = EVERYONE
    lanes: Annotated[int, 4] = Lanes.BITS_32
    flags: Annotated[int, 4] = 0
    words: Annotated[int, 8] = 1
    k: Annotated[int, 16] = 0
    generation: Annotated[int, 32] = 0
    iteration: Annotated[int, 32] = 1
    block: Annotated[int, 32] = 0
    slot: Annotated[int, 16] = 0
    checksum: Annotated[int, 16] = 0
    scale: Annotated[int, 16] = 0
    count: Annotated[int, 16] = 1  # type: ignore[assignment]  # hides tuple.count, which is not needed
    part: Annotated[int, 8] = 0
    bitmaps: Annotated[int, 8] = 0
    weight: Annotated[int, 32] = WEIGHT_UNIT
    members: Annotated[int, PARTS * RACK_WORKERS_MAX] = 0


HEADER_FIELDS: tuple[tuple[str, int], ...] = tuple(
    (name, hint.__metadata__[0]) for name, hint in get_type_hints(KofnHeader, include_extras=True).items()
)
"""(name, bits) of every field of KofnHeader."""

SIGNED_FIELDS = frozenset({"scale"})
HEADER_BYTES = sum(bits for _, bits in HEADER_FIELDS) // 8
MEMBERS_BITS = PARTS * RACK_WORKERS_MAX
MEMBERS_BYTES = MEMBERS_BITS // 8
PACKET_BYTES_MAX = HEADER_BYTES + RACKS_MAX * MEMBERS_BYTES + WORDS_MAX * WORD_BYTES


def _byte_groups() -> Iterator[list[tuple[str, int]]]:
    """Yield groups of consecutive fields that fill whole bytes, in wire order."""
    group: list[tuple[str, int]] = []
    for field in HEADER_FIELDS:
        group.append(field)
        if sum(bits for _, bits in group) % 8 == 0:
            yield group
            group = []


def _struct_format() -> str:
    """Return one struct code per group: pairs of 4-bit fields share a byte, the bitmap is bytes."""
    codes = {8: "B", 16: "H", 32: "I", 256: "32s"}
    groups = [(sum(bits for _, bits in group), group[0][0] in SIGNED_FIELDS) for group in _byte_groups()]
    return ">" + "".join(codes[bits].lower() if signed else codes[bits] for bits, signed in groups)


_HEADER = struct.Struct(_struct_format())


FEW_BYTES = 512
"""Below this size Python sums faster than NumPy."""


def _place(name: str) -> slice:
    """Return the header's bytes that hold a field."""
    names = [field for field, _ in HEADER_FIELDS]
    widths = [bits for _, bits in HEADER_FIELDS]
    at = sum(widths[: names.index(name)]) // 8
    return slice(at, at + widths[names.index(name)] // 8)


CHECKSUM, ITERATION = _place("checksum"), _place("iteration")
"""The bytes of the checksum and of the iteration in a packet."""


def encode_header(header: KofnHeader) -> bytes:
    """Return the header's bytes, with `checksum` as given; WireError if a field is out of range."""
    version, kind, job, worker, rack, recipient, lanes, flags, *rest, members = header
    if (version | kind | lanes | flags) >> 4:
        raise WireError(f"version, kind, lanes and flags must be 0 to 15, got {header}")
    try:
        bitmap = members.to_bytes(MEMBERS_BYTES)
        return _HEADER.pack(version << 4 | kind, job, worker, rack, recipient, lanes << 4 | flags, *rest, bitmap)
    except (struct.error, OverflowError) as error:
        raise WireError(f"{error}: {header}") from error


def headers_of(heads: bytes | memoryview) -> Iterator[KofnHeader]:
    """Yield the headers of consecutive encoded headers."""
    for first, job, worker, rack, recipient, widths, *rest in _HEADER.iter_unpack(heads):
        rest[-1] = int.from_bytes(rest[-1])
        yield KofnHeader(first >> 4, first & 15, job, worker, rack, recipient, widths >> 4, widths & 15, *rest)


def _unpack(datagram: bytes | memoryview) -> KofnHeader:
    """Return the header of a datagram, unchecked."""
    return next(headers_of(datagram[:HEADER_BYTES]))


def decode_header(
    datagram: bytes | memoryview, parse: Callable[[bytes | memoryview], KofnHeader] = _unpack
) -> KofnHeader:
    """Return a datagram's header; WireError if it is too short, of another version or length, or damaged."""
    header = parse(datagram) if len(datagram) >= HEADER_BYTES else KofnHeader()
    check(header, len(datagram), sum_of(datagram))
    return header


def check(header: KofnHeader, size: int, total: int) -> None:
    """Raise WireError unless a datagram's size and sum_of() agree with its header."""
    if size < HEADER_BYTES:
        raise WireError(f"a datagram of {size} bytes: a kofn header has {HEADER_BYTES}")
    if header.version != VERSION:
        raise WireError(f"version must be {VERSION}, got {header.version}")
    if size != HEADER_BYTES + header.bitmaps * MEMBERS_BYTES + header.words * WORD_BYTES:
        raise WireError(
            f"a packet must have {HEADER_BYTES} + bitmaps * 32 + words * 256 bytes, got {size} with bitmaps ="
            f" {header.bitmaps}, words = {header.words}"
        )
    if total:
        raise ChecksumError(f"a damaged packet: its checksum {header.checksum:#06x} does not match its content")


def encode(header: KofnHeader, values: bytes | memoryview) -> bytes:
    """Return a whole datagram: the header with its checksum, then bitmaps and values as on the wire."""
    return b"".join((encode_head(header, sum_of(values)), values))


def encode_head(header: KofnHeader, values_sum: int) -> bytearray:
    """Return a datagram's header with its checksum, given the sum of the values."""
    head = bytearray(encode_header(header))
    head[CHECKSUM] = b"\0\0"
    total = (sum_of(head) + values_sum) % 0xFFFF
    head[CHECKSUM] = (0xFFFF - (total or 0xFFFF)).to_bytes(2, "little")
    return head


def sum_of(data: bytes | bytearray | memoryview) -> int:
    """Return the one's complement sum of 16-bit words (RFC 1071) modulo 2**16 - 1, bytes swapped; 0 for valid packets.

    Wider words have the same sum, and byte-swapped words the swapped sum.  So large data are added as native 32-bit
    words, and small data as one wide integer.
    """
    if len(data) < FEW_BYTES:
        return int.from_bytes(data, "little") % 0xFFFF
    whole = len(data) // 4
    rest = int.from_bytes(data[4 * whole :], "little")
    return (int(np.add.reduce(np.frombuffer(data, "<u4", whole), dtype=np.uint64)) + rest) % 0xFFFF


def places_of(workers: int, racks: int = 1) -> list[int]:
    """Return each worker's place, by rank: 256 times its rack, plus its rank in the rack.

    A place is a packet's `recipient`, and the bit of the worker's part 0 among the members of all racks.  Racks have
    equal numbers of workers: rack 0 has the first ranks.
    """
    size = workers // racks
    return [rank // size * MEMBERS_BITS + rank % size for rank in range(workers)]


def bit_of(place: int, part: int) -> int:
    """Return a bitmap with the bit of one contribution: this part of the worker at this place."""
    return 1 << part * RACK_WORKERS_MAX + place


def bits_of(place: int) -> int:
    """Return a bitmap with the bits of all parts of the worker at this place."""
    return sum(bit_of(place, part) for part in range(PARTS))


def members_of(bitmap: int, places: Iterable[int] = range(RACK_WORKERS_MAX)) -> list[int]:
    """Return the ranks with any part in a bitmap, ascending, given all workers' places."""
    return [rank for rank, place in enumerate(places) if bitmap >> place & _ALL_PARTS]


def leaf_shift(k: int, workers: int, racks: int) -> int:
    """Return a leaf's `shift`. The leaf's open buffer is due when it has at least missing >> shift contributions, where
    `missing` is the number of contributions that the root still misses.

    The shift is 0 with k = n: a leaf then waits for its whole rack. Otherwise all leaves together hold back at most
    half of what the root misses.
    """
    return 0 if k == workers else (2 * racks - 1).bit_length()


_ALL_PARTS = bits_of(0)
