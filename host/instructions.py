"""What the protocol wants done: its only output."""

from dataclasses import dataclass

from host.history import BlockId, Result
from host.wire import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Hand a packet to the network; `values` is empty for a PULL and is padded to the result's length."""

    header: Header
    values: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """A block of the current iteration closed with this result."""

    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Every block of the current iteration is closed."""

    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeAgain:
    """The slot sums at another scale: encode the block at this one and contribute it again."""

    block: int
    scale: int
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeers:
    """The switch has forgotten this block's result: peers hold it."""

    id: BlockId


Instruction = Send | Deliver | Complete | EncodeAgain | AskPeers
