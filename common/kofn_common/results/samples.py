"""samples.jsonl of a trial: the bytes of the links and the content of the slots, several times a second."""

import msgspec

from kofn_common.results.link_bytes import LinkBytes


class SlotSample(msgspec.Struct, frozen=True, array_like=True):
    """One slot of the iteration in progress."""

    iteration: int
    block: int
    closed: bool
    present: str  # by rank: "1" where the worker's gradient is in the sum, else "0"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One line of samples.jsonl."""

    time: float  # Unix
    links: LinkBytes  # by host, since the trial's start: bytes to the switch and from it
    slots: tuple[SlotSample, ...] | None = None  # none if the live page was not open, and with BMv2
