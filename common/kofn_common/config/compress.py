"""The TOML file's [compress]: how gradients become lanes, how much of a gradient is sent, and at which rate."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.plugins import CODECS
from kofn_common.config.section import MBPS, Section
from kofn_common.wire.sizes import VOTE_WORDS

RatioControl = Literal["off", "deliverable", "literal"]

Rounding = Literal["nearest", "stochastic"]

Residual = Literal["exact", "bfloat16", "int8"]

INTEGERS = {"int32": 32, "int16": 16, "int8": 8, "int4": 4}
"""Bits of a lane of the codecs with one width for any number of workers, widest first."""

FIXED_POINT = (*INTEGERS, "auto")
"""Codecs whose lanes are known before the codec is loaded."""

ERROR_MAX = {True: 0.9, False: 0.5}
"""The default of max_encoding_error, by error_feedback. With errors below these shares, narrower lanes save more time
by half the bytes than their additional iterations cost (measured in docs/explanation/compression.md)."""


ONE_BIT = "onebit"
"""The codec whose lanes are votes."""

BMV2_GROWTH = 2
"""The most words that BMv2 may add to a packet for its answer."""


def check_votes(workers: int, words: int, target: str) -> None:
    """Raise ConfigError unless this target can answer packets of `words` words of votes. An answer has a plane for each
    bit of n."""
    planes, most = workers.bit_length(), VOTE_WORDS
    if target == "bmv2" and planes > 1:
        most = min(most, BMV2_GROWTH // (planes - 1))
        if not most:
            raise ConfigError(
                f"job.workers must be up to 7 with compress.codec = {ONE_BIT!r} and network.target = 'bmv2', got"
                f" {workers}: an answer to more workers is longer than BMv2 permits"
            )
    if words > most:
        why = f", network.target = 'bmv2' and {workers} workers" if most < VOTE_WORDS else ""
        raise ConfigError(f"job.words must be 1 to {most} with compress.codec = {ONE_BIT!r}{why}, got {words}")


def limit_of(width: int, workers: int) -> int:
    """Return the largest magnitude that each of `workers` workers may add to a signed lane of `width` bits; 0: no
    room."""
    most: int = (1 << (width - 1)) - 1
    return most // workers


class CompressSection(Section, frozen=True):
    """The part of a gradient that is sent, and its form (docs/explanation/compression.md)."""

    codec: str = "int32"  # int16, int8, int4, onebit, auto, or module:Name for a custom codec
    rounding: Rounding = "nearest"
    error_feedback: bool = True  # errors of rounding and clipping are sent later; false: they are discarded
    residual: Residual = (
        "exact"  # exact: 8 bytes an element; bfloat16: 2 bytes, int8: 1 byte; both lose rounding errors
    )
    ratio: Annotated[float, Meta(gt=0, le=1)] = (
        1.0  # sent share of the float32 gradient's bytes; if all lanes need more, only some blocks are sent
    )
    max_send_interval: Annotated[int, Meta(ge=1, le=1000)] = 8  # most iterations between two transmissions of a block
    ratio_control: RatioControl = "off"  # how the ratio follows the link's rate; needs codec = "auto"
    rate_stability: Annotated[float, Meta(gt=0, lt=1)] = (
        0.1  # the rate is stable if successive rates differ by at most this share
    )
    max_encoding_error: Annotated[float, Meta(gt=0, le=1)] | None = (
        None  # share of the gradient's squared norm that narrowed lanes may lose;
        # None: 0.9 with error_feedback, 0.5 without
    )
    pace_mbps: float | None = None  # rate at which a worker's packets leave; 0: not paced; None: network.link_mbps

    @property
    def compresses(self) -> bool:
        """Whether fewer bytes may be sent than a gradient has in float32."""
        return self.codec != "int32" or self.ratio < 1

    @property
    def error_max(self) -> float:
        """The share of the gradient's squared norm that narrowed lanes may lose."""
        return ERROR_MAX[self.error_feedback] if self.max_encoding_error is None else self.max_encoding_error

    def widths(self, workers: int) -> tuple[int, ...]:
        """Return the widths of lanes, in bits, that a codec of FIXED_POINT may use among `workers` workers, widest
        first. The result may be empty.

        The sum of all workers' lanes must fit a lane: a lane of w bits holds (2**(w-1) - 1) // workers steps of each
        worker.
        """
        fitting = {name: width for name, width in INTEGERS.items() if limit_of(width, workers)}
        return tuple(width for name, width in fitting.items() if self.codec in (name, "auto"))

    def check(self, *, workers: int, words: int, target: str = "embedded") -> None:
        """Check rules across keys. ConfigError names the key, the rule and the value. `target` is the network's."""
        CODECS.check(self.codec, "compress.codec")
        if self.ratio_control != "off" and self.codec != "auto":
            raise ConfigError(
                f"compress.codec must be 'auto' with compress.ratio_control = {self.ratio_control!r}, got"
                f" {self.codec!r}"
            )
        if self.pace_mbps is not None and self.pace_mbps != 0 and not MBPS[0] <= self.pace_mbps <= MBPS[1]:
            raise ConfigError(f"compress.pace_mbps must be 0 or {MBPS[0]:g} to {MBPS[1]:g}, got {self.pace_mbps}")
        if self.codec in FIXED_POINT:
            self._check_widths(workers, words)
        if self.codec == ONE_BIT:
            check_votes(workers, words, target)

    def _check_widths(self, workers: int, words: int) -> None:
        """Check that lanes hold the sum of all workers, and fill whole words."""
        widths = self.widths(workers)
        if not widths:
            enough = [name for name, width in INTEGERS.items() if limit_of(width, workers)]
            raise ConfigError(
                f"compress.codec must be {', '.join(enough)}, onebit or auto, got {self.codec!r}: its"
                f" {INTEGERS[self.codec]}-bit lanes leave no bits for the sum of {workers} workers (job.workers)"
            )
        self.check_words(widths, words)

    def check_words(self, widths: Sequence[int], words: int) -> None:
        """Check that a block of `words` words in the widest lanes has whole words in the narrowest."""
        whole = widths[0] // widths[-1]
        if words % whole:
            raise ConfigError(
                f"job.words must be a multiple of {whole} with compress.codec = {self.codec!r}, got {words}: a"
                f" block in {widths[-1]}-bit lanes takes {widths[-1]} / {widths[0]} of its words"
            )
