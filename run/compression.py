"""The TOML file's [compress]: how gradients become lanes, how much of them is sent, and how fast."""

import re
from typing import Annotated, Literal

from msgspec import Meta

from run.errors import ConfigError
from run.sections import MBPS, Section

Adapt = Literal["off", "deliverable", "literal"]

Rounding = Literal["nearest", "stochastic"]

INTEGERS = {"int32": 32, "int16": 16, "int8": 8, "int4": 4}
"""Bits of a lane of the codecs with one width whatever the number of workers, widest first."""

NAMES = (*INTEGERS, "onebit", "auto")

ERROR_MAX = {True: 0.9, False: 0.5}
"""Default of max_encoding_error, with error feedback and without: below these the iterations that narrower lanes cost
are fewer than those that half the bytes are worth (measured in docs/COMPRESSION.md)."""

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""A codec of a user's own."""


def limit_of(width: int, workers: int) -> int:
    """Largest magnitude of a signed lane of so many bits of which `workers` may be added; 0: they have no room."""
    most: int = (1 << (width - 1)) - 1
    return most // workers


class Compress(Section, frozen=True):
    """What of a gradient goes over the network (docs/COMPRESSION.md)."""

    codec: str = "int32"  # one of NAMES, or module:name for a codec of your own
    rounding: Rounding = "nearest"
    feedback: bool = True  # what rounding and clipping leave over is sent later; false: it is thrown away
    ratio: Annotated[float, Meta(gt=0, le=1)] = (
        1.0  # of the float32 gradient's bytes; below what the lanes give, blocks are selected
    )
    every: Annotated[int, Meta(ge=1, le=1000)] = 8  # each block is sent at least every so many iterations
    adapt: Adapt = "off"  # how the ratio follows the link's rate; needs codec = "auto"
    rate_stability: Annotated[float, Meta(gt=0, lt=1)] = (
        0.1  # share by which successive rates may differ for the rate to count as stable
    )
    max_encoding_error: Annotated[float, Meta(gt=0, le=1)] | None = (
        None  # share of the gradient's squared norm that lanes narrowed by adapt may leave over; None: error_max
    )
    pace_mbps: float | None = None  # packets leave at this rate; 0: as they come; None: network.link_mbps

    @property
    def own(self) -> bool:
        """Whether the codec is a user's own: it says itself which lanes it has."""
        return self.codec not in NAMES

    @property
    def compresses(self) -> bool:
        """Whether fewer bytes may be sent than a gradient has in float32."""
        return self.codec != "int32" or self.ratio < 1

    @property
    def error_max(self) -> float:
        """Share of the gradient's squared norm that narrowed lanes may leave over."""
        return ERROR_MAX[self.feedback] if self.max_encoding_error is None else self.max_encoding_error

    def widths(self, workers: int) -> tuple[int, ...]:
        """Bits of the lanes that a built-in codec may use among so many workers, widest first; empty if there are none.

        The sum of all workers' lanes must fit a lane: a signed lane of w bits holds (2**(w-1) - 1) // workers steps of
        each, a vote of one bit needs lanes that count to workers.
        """
        if self.codec == "onebit":
            return (4,) if workers < 16 else (8,)
        fitting = {name: width for name, width in INTEGERS.items() if limit_of(width, workers)}
        return tuple(width for name, width in fitting.items() if self.codec in (name, "auto"))

    def check(self, *, workers: int, words: int) -> None:
        """What spans keys; ConfigError names the key, its value and what is allowed."""
        if self.own and not MODULE.fullmatch(self.codec):
            raise ConfigError(f"compress.codec is {self.codec!r}: {', '.join(NAMES)} or module:name is allowed")
        if self.adapt != "off" and self.codec != "auto":
            raise ConfigError(
                f"compress.adapt is {self.adapt!r}, compress.codec is {self.codec!r}: 'auto' is needed,"
                " or adapt = 'off'"
            )
        if self.pace_mbps is not None and self.pace_mbps != 0 and not MBPS[0] <= self.pace_mbps <= MBPS[1]:
            raise ConfigError(f"compress.pace_mbps is {self.pace_mbps}: 0, or {MBPS[0]:g} to {MBPS[1]:g}, is allowed")
        if not self.own:
            self._check_widths(workers, words)

    def _check_widths(self, workers: int, words: int) -> None:
        """Lanes that hold the sum of all workers, and blocks that are whole words in the narrowest of them."""
        widths = self.widths(workers)
        if not widths:
            enough = [name for name, width in INTEGERS.items() if limit_of(width, workers)]
            raise ConfigError(
                f"compress.codec is {self.codec!r}: its {INTEGERS[self.codec]}-bit lanes leave no bits for the sum of"
                f" {workers} workers (job.workers); {', '.join(enough)}, onebit or auto is allowed"
            )
        whole = widths[0] // widths[-1]
        if words % whole:
            raise ConfigError(
                f"job.words is {words}: a multiple of {whole} is allowed with compress.codec = {self.codec!r}, as a"
                f" block in {widths[-1]}-bit lanes takes {widths[-1]} / {widths[0]} of its words"
            )
