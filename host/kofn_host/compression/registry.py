"""Codecs by name, and the checks of custom codecs.

`compress.codec` names a callable that returns a Codec, or several codecs of different widths.  The callable may have
the parameters `workers`, `rounding` and `gradient_range`, and gets their values from the job's configuration.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt

from kofn_common.config.compress import Rounding
from kofn_common.config.plugins import CODECS, in_words
from kofn_host.arrays import Exponents, Fixed, Values
from kofn_host.compression.codec import FRACTION_BITS, MAGNITUDE_MAX, Codec, statistics
from kofn_host.errors import CodecError
from kofn_host.kernels.lanes import VOTES, code_of

LANES = 64
"""Lanes of a trial block."""


def load_codecs(
    name: str, *, workers: int, rounding: Rounding = "nearest", gradient_range: float = 64.0
) -> dict[int, Codec]:
    """Return the codecs that a job may use, by the width of their lanes, widest first.

    ConfigError if the name is unknown; CodecError if a codec leaves no room for the workers, or breaks the contract of
    Codec.
    """
    make = CODECS.load(name)
    if not callable(make):
        raise CodecError(f"{CODECS.called(name)} must be a callable that returns a Codec, got a {type(make).__name__}")
    asked = {"workers": workers, "rounding": rounding, "gradient_range": gradient_range}
    if name in CODECS.built_in:
        return _by_width(_made(make, asked))
    try:
        codecs = _by_width(_made(make, asked))
        if not codecs:
            raise CodecError("the callable must return one codec or more, got none")
        for codec in codecs.values():
            check_codec(codec, workers)
    except CodecError as error:
        raise CodecError(f"{CODECS.called(name)}: {error}") from error
    except Exception as error:  # custom code may raise anything
        raise CodecError(f"{CODECS.called(name)} failed: {in_words(error)}") from error
    return codecs


def _made(make: Callable[..., Any], asked: Mapping[str, object]) -> Sequence[Codec]:
    """Call `make` with the arguments that it has parameters for; return its codec or codecs."""
    made = make(**{key: value for key, value in asked.items() if key in signature(make).parameters})
    return made if isinstance(made, Sequence) else [made]


def _by_width(codecs: Sequence[Codec]) -> dict[int, Codec]:
    return {codec.width: codec for codec in sorted(codecs, key=lambda codec: -codec.width)}


def check_codec(codec: Codec, workers: int) -> None:
    """Test a codec on blocks of every kind; CodecError names the broken rule.

    Scales must be integers from 0 to 40, one per block, and reproducible.  Lanes must be int32, of the blocks' shape,
    and so small that the sum of `workers` workers' lanes fits for all values and scales.  Decoding must be exactly
    linear.
    """
    code_of(codec.width)
    if codec.width == VOTES and codec.signed:
        raise CodecError("lanes of one bit must be unsigned votes, 0 or 1, got signed ones")
    values = [_trial(np.random.default_rng(worker)) for worker in range(workers)]
    scale = _checked_scale(codec, values)
    for exponent in (scale[:, None], np.zeros_like(scale)[:, None], np.full_like(scale, FRACTION_BITS)[:, None]):
        lanes = [_checked_lanes(codec, block, exponent, workers) for block in values]
        addends = [_checked_values(codec, addend, exponent, 1) for addend in lanes]
        total = _checked_values(codec, np.sum(lanes, axis=0, dtype=np.int32), exponent, workers)
        if not np.array_equal(total, np.sum(addends, axis=0)):
            raise CodecError(
                f"decode of the sum of {workers} workers' lanes is not the sum of decode of each: a switch adds lanes"
            )


def _trial(random: np.random.Generator) -> Fixed:
    """Return blocks of zeros, of small, spread and one-signed values, and of the largest possible values."""
    size = int(MAGNITUDE_MAX) << FRACTION_BITS
    rows = (
        np.zeros(LANES),
        random.integers(-3, 4, LANES),
        random.laplace(0, 2.0**30, LANES),
        np.abs(random.laplace(0, 2.0**36, LANES)),
        -np.abs(random.laplace(0, 2.0**36, LANES)),
        np.full(LANES, size),
        np.full(LANES, -size),
        random.choice([-size, size], LANES),
    )
    return np.stack([row.astype(np.int64) for row in rows])


def _checked_scale(codec: Codec, values: list[Fixed]) -> Exponents:
    """Return the codec's scales for agreed magnitudes, checked."""
    means, largest = zip(*map(statistics, values), strict=True)
    agreed = np.mean(means, axis=0), np.max(largest, axis=0)
    scale, again = codec.scale(*agreed), codec.scale(*agreed)
    _check_array("scale", scale, np.dtype(np.int64), agreed[0].shape)
    if not np.array_equal(scale, again):
        raise CodecError("scale gave two answers to the same arguments: all workers must find the same")
    if scale.min() < 0 or scale.max() > FRACTION_BITS:
        raise CodecError(f"scale must give 0 to {FRACTION_BITS}, got {scale.min()} to {scale.max()}")
    return scale


def _checked_lanes(codec: Codec, values: Fixed, scale: Exponents, workers: int) -> Values:
    """Return a worker's lanes, checked: the sum must fit even if all workers' lanes are as large."""
    before = values.copy()
    lanes = codec.encode(values, scale)
    _check_array("encode", lanes, np.dtype(np.int32), values.shape)
    if not np.array_equal(values, before):
        raise CodecError("encode changed the values: the encoding error is computed from them")
    least, most = _range(codec, workers)
    smallest, largest = workers * int(lanes.min()), workers * int(lanes.max())
    if smallest < least or largest > most:
        raise CodecError(
            f"encode leaves no head-room: lanes of {lanes.min()} to {lanes.max()} from each of {workers} workers come"
            f" to {smallest} to {largest}, and a lane of {codec.width} bits holds {least} to {most}"
        )
    return lanes


def _checked_values(codec: Codec, lanes: Values, scale: Exponents, count: int) -> Fixed:
    """Return a sum's values, checked."""
    values = codec.decode(lanes, scale, np.full(scale.shape, count))
    _check_array("decode", values, np.dtype(np.int64), lanes.shape)
    if not np.array_equal(codec.decode(lanes[-1:], int(scale[-1, 0]), count), values[-1:]):
        raise CodecError("decode of one block must be the same with scale and count as numbers and as arrays")
    return values


def _range(codec: Codec, workers: int) -> tuple[int, int]:
    """Return the range of a sum's lane; votes are counted without a limit."""
    if codec.width == VOTES:
        return 0, workers
    if codec.signed:
        return -(2 ** (codec.width - 1)), 2 ** (codec.width - 1) - 1
    return 0, 2**codec.width - 1


def _check_array(name: str, array: npt.NDArray[Any], kind: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise CodecError unless a codec returned an array of this type and shape."""
    if not isinstance(array, np.ndarray) or array.dtype != kind or array.shape != shape:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise CodecError(f"{name} must return {kind} {shape}, got {found}")
