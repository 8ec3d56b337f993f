"""What the protocol wants done, its only output, and what it is given to send."""

from dataclasses import dataclass
from typing import NamedTuple

from kofn.host.protocol.history import BlockId, Result
from kofn.host.wire.packet import PARTS, KofnHeader


def request_of(block: int, part: int) -> int:
    """A number for a part of this worker's contribution to a block; PULLs are part 0's."""
    return block * PARTS + part


class Packed(NamedTuple):
    """What is sent of a block; `weight`: of the gradients in it, in 1 / WEIGHT_UNIT."""

    values: bytes
    scale: int
    lanes: int
    weight: int


class Send(NamedTuple):
    """Hand a packet to the network; the values of a PULL are zeros, as many as the result has."""

    header: KofnHeader
    values: bytes


class Deliver(NamedTuple):
    """A block of the current iteration closed with this result.

    `hint`: the code of the lanes that the worker that closed it sends in by now, where they are narrower than planned.
    """

    result: Result
    hint: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Every block of the current iteration is closed."""

    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeAgain:
    """The slot sums at another scale or in other lanes: encode this part of the contribution so, and send it again."""

    block: int
    part: int
    counts: bool
    scale: int
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeers:
    """The switch has forgotten this block's result: peers hold it."""

    id: BlockId


Instruction = Send | Deliver | Complete | EncodeAgain | AskPeers
