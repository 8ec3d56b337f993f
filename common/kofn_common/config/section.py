"""The base class of every table of the run's TOML file, and types of numbers with bounds."""

import sys
from typing import Annotated

import msgspec
from msgspec import Meta

LARGEST = sys.float_info.max
"""The upper bound of finite values."""

Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
Probability = Annotated[float, Meta(ge=0, le=1)]
PositiveInt = Annotated[int, Meta(ge=1)]
MBPS = (0.1, 100_000.0)
Mbps = Annotated[float, Meta(ge=MBPS[0], le=MBPS[1])]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the TOML file: immutable, every key known."""
