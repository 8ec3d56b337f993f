"""The base class of every table of the run's TOML file, and types of numbers with bounds."""

from typing import Annotated

import msgspec
from msgspec import Meta

LARGEST = 1e9
"""The upper bound of values: 11 days in milliseconds. With it, times in nanoseconds fit 64 bits, and products of a few
values are finite."""

Positive = Annotated[float, Meta(ge=1 / LARGEST, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Probability = Annotated[float, Meta(ge=0, le=1)]
PositiveInt = Annotated[int, Meta(ge=1, le=10**9)]
WholeNumber = Annotated[int, Meta(ge=0, le=10**9)]
MBPS = (0.1, 100_000.0)
Mbps = Annotated[float, Meta(ge=MBPS[0], le=MBPS[1])]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the TOML file: immutable, every key known."""
