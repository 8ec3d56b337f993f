"""What the protocol wants done, its only output, and what it is given to send."""

from dataclasses import dataclass
from typing import NamedTuple

from host.history import BlockId, Result
from host.wire import Header


class Packed(NamedTuple):
    """What is sent of a block, with so many gradients in it."""

    values: bytes
    scale: int
    lanes: int
    gradients: int


class Send(NamedTuple):
    """Hand a packet to the network; the values of a PULL are zeros, as many as the result has."""

    header: Header
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
    """The slot sums at another scale or in other lanes: encode the block as it does and contribute it again."""

    block: int
    scale: int
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeers:
    """The switch has forgotten this block's result: peers hold it."""

    id: BlockId


Instruction = Send | Deliver | Complete | EncodeAgain | AskPeers
