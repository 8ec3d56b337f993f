"""All-reduce over a job's workers, whoever implements it: what training and benchmarks need of one.

    with Ring(0, ["10.0.0.1", "10.0.0.2"]) as collective:  # or Gloo, or InNetwork
        reduced = collective.all_reduce([weights, biases])
        step(reduced.arrays)

Knows no network.  `Calls` are made up to the first that fails; `Form` is what a call's arrays look like, and how they
become one and several again.
"""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.errors import CollectiveError
from kofn.host.stopwatch import OnShare, Times

ELEMENTS_MAX = 10_000_000
"""Of all arrays of a call."""

SHOWN = 4
"""Shapes that a message has of each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What a call came to.

    `arrays`: means over who is in them, float32, in the shapes of what was given; the same bytes at every worker, and
    the caller's to keep.  `count`: how many workers are in them, the least over blocks.  `sent_bytes` and
    `received_bytes`: payload of UDP or TCP, again and again where something was sent again.  `skipped`: the means of
    later calls that the others have finished meanwhile without this worker, in order; its next call takes part in the
    one after these.  Only where fewer than all workers complete a sum.
    """

    arrays: list[Floats]
    count: int
    times: Times
    sent_bytes: int
    received_bytes: int
    skipped: Sequence[list[Floats]] = ()


class Collective(Protocol):
    """One worker's place among all that reduce together.

    Every worker makes the same calls with the same shapes in the same order.  CollectiveError says who failed, or what
    differs; every wait has a limit, so that nothing hangs.  After an error close() is all that is left: the calls of
    the workers are out of step.
    """

    @property
    def rank(self) -> int:
        """This worker's, from 0."""

    @property
    def workers(self) -> int:
        """How many there are."""

    def all_reduce(self, arrays: Sequence[Floats], *, on_share: OnShare | None = None) -> Reduced:
        """The means of all workers' arrays, which stay as they are: float32, any number, any shapes, empty ones too.

        CollectiveError also for arrays that are not float32, not finite, or more than ELEMENTS_MAX elements together.
        """

    def close(self) -> None:
        """Give everything back; calls of others that still need this worker fail.  A second time it does nothing."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *error: object) -> None:
        """Close."""


class Calls(ABC):
    """Calls of a Collective one after another, up to the first that fails.

    `_reduce()` makes one; of what it raises, TRANSLATED becomes CollectiveError, in the words of `_blame()`.
    """

    TRANSLATED: ClassVar[type[Exception]]

    _failed = ""
    """Why no call is made any more."""

    def all_reduce(self, arrays: Sequence[Floats], *, on_share: OnShare | None = None) -> Reduced:
        if self._failed:
            raise CollectiveError(f"an earlier call has failed: {self._failed}")
        try:
            return self._reduce(arrays, on_share)
        except CollectiveError as error:
            self._failed = str(error)
            raise
        except self.TRANSLATED as error:
            self._failed = self._blame(error)
            raise CollectiveError(self._failed) from error
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise

    @abstractmethod
    def _reduce(self, arrays: Sequence[Floats], on_share: OnShare | None) -> Reduced:
        """A single call."""

    @abstractmethod
    def _blame(self, error: Exception) -> str:
        """Who failed."""

    @abstractmethod
    def close(self) -> None:
        """As Collective."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Form:
    """What a call's arrays look like: their shapes, in order.

    >>> form = Form.of([np.zeros((3, 4), np.float32), np.float32([1, 2])])
    >>> str(form), form.elements
    ('2 arrays of shapes (3, 4), (2,)', 14)
    """

    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Sequence[Floats]) -> Self:
        """Theirs; CollectiveError where they are not float32, or too many elements."""
        for index, array in enumerate(arrays):
            if not isinstance(array, np.ndarray | np.generic) or array.dtype != np.float32:
                found = getattr(array, "dtype", type(array).__name__)
                raise CollectiveError(f"array {index} is {found}: NumPy's float32 is allowed")
        form = cls(tuple(array.shape for array in arrays))
        if form.elements > ELEMENTS_MAX:
            raise CollectiveError(f"{form} with {form.elements:,} elements: up to {ELEMENTS_MAX:,} are allowed")
        return form

    @property
    def elements(self) -> int:
        return sum(map(math.prod, self.shapes))

    @property
    def digest(self) -> int:
        """31 bits that are others for other shapes."""
        return zlib.crc32(repr(self.shapes).encode()) >> 1

    def join(self, arrays: Sequence[Floats], into: Floats) -> None:
        """All elements, one array after another, into the first of a flat one; CollectiveError where one is not finite.

        The rest of it stays.
        """
        at = 0
        for index, array in enumerate(arrays):
            part = into[at : at + array.size]
            part[:] = array.reshape(-1)
            if part.size and not (math.isfinite(part.min()) and math.isfinite(part.max())):
                bad = int(np.argmin(np.isfinite(part)))
                raise CollectiveError(f"element {bad} of array {index} is {part[bad]}: finite numbers are allowed")
            at += array.size

    def split(self, flat: Floats) -> list[Floats]:
        """The arrays that join() has put together: parts of the flat one, not copies."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes], dtype=int).tolist()
        starts = [0, *ends]
        return [flat[starts[at] : starts[at + 1]].reshape(shape) for at, shape in enumerate(self.shapes)]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.shapes[:SHOWN])) + (", ..." if len(self.shapes) > SHOWN else "")
        return f"{len(self.shapes)} arrays of shapes {shown}" if self.shapes else "no arrays"
