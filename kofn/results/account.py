"""What became of a worker's gradients, in numbers: what it tells the controller and writes down."""

from dataclasses import dataclass

STARVED = 8
"""A worker of which so many gradients in a row are in no sum is starved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """How many gradients a worker has entered so far, by weight, and what became of them: means over the blocks.

    entered = summed + waiting + discarded.
    """

    entered: float = 0.0  # gradients so far, by weight
    summed: float = 0.0  # of these, in sums
    waiting: float = 0.0  # of these, pending
    discarded: float = 0.0  # of these, lost to age
    late_since: int = 0  # first iteration with a sum that closed without a gradient that still waits; 0: none
