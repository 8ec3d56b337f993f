"""The fate of a worker's gradients, in numbers, for the controller and for the metrics file."""

from dataclasses import dataclass

STARVED = 8
"""A worker of which STARVED gradients in a row are in no sum is starved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A worker's gradients so far, by weight, as means over the blocks: how many were entered, and where they are now.

    entered = summed + waiting + discarded.
    """

    entered: float = 0.0  # gradients so far, by weight
    summed: float = 0.0  # the part of `entered` that is in sums
    waiting: float = 0.0  # the part that is pending
    discarded: float = 0.0  # the part that was lost to age
    late_since: int = 0  # first iteration with a sum that closed without a gradient that still waits; 0: none
