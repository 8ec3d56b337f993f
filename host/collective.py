"""All-reduce over a job's workers, whoever implements it: what training and benchmarks need of one.

    with Ring(0, ["10.0.0.1", "10.0.0.2"]) as collective:  # or Gloo, or InNetwork
        reduced = collective.all_reduce([weights, biases])
        step(reduced.arrays)

Knows no network.  `Calls` are made up to the first that fails; `Form` is what a call's arrays look like, and how they
become one and several again; `Stopwatch` measures where a call's time goes.
"""

import math
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal, Protocol, Self, get_args

import numpy as np
import numpy.typing as npt

from host.errors import CollectiveError

Floats = npt.NDArray[np.float32]

Progress = Callable[[float], None]
"""Hears in the calling thread which share of a call is done, 0 to 1, growing; what it raises ends the call."""

Part = Literal["encode", "send", "wait", "receive", "sum", "decode"]

ELEMENTS_MAX = 10_000_000
"""Of all arrays of a call."""

SHOWN = 4
"""Shapes that a message has of each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Where a call's time went, in seconds of this worker: every moment is in exactly one of these.

    encode: from the arrays to what is sent: checked, copied into one, rounded and packed where there is a codec.
    send: handing packets or bytes to the kernel, with their headers and checksums.
    wait: nothing to do here: for other workers, links, switch or server, a pacer's turn, and a thread's turn.
    receive: taking packets or bytes from the kernel, checking them, and noting in the books what was counted.
    sum: adding other workers' values to one's own, and dividing; 0 where another machine does it.
    decode: from what came to the means in their shapes.
    """

    encode: float = 0.0
    send: float = 0.0
    wait: float = 0.0
    receive: float = 0.0
    sum: float = 0.0
    decode: float = 0.0

    @property
    def total(self) -> float:
        """What the call took."""
        return math.fsum(asdict(self).values())


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

    def all_reduce(self, arrays: Sequence[Floats], *, progress: Progress | None = None) -> Reduced:
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

    def all_reduce(self, arrays: Sequence[Floats], *, progress: Progress | None = None) -> Reduced:
        """As Collective."""
        if self._failed:
            raise CollectiveError(f"an earlier call has failed: {self._failed}")
        try:
            return self._reduce(arrays, progress)
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
    def _reduce(self, arrays: Sequence[Floats], progress: Progress | None) -> Reduced:
        """A single call."""

    @abstractmethod
    def _blame(self, error: Exception) -> str:
        """Who failed."""

    @abstractmethod
    def close(self) -> None:
        """As Collective."""

    def __enter__(self) -> Self:
        """As Collective."""
        return self

    def __exit__(self, *error: object) -> None:
        """As Collective."""
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
        """Of all arrays."""
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
        """For messages."""
        shown = ", ".join(map(str, self.shapes[:SHOWN])) + (", ..." if len(self.shapes) > SHOWN else "")
        return f"{len(self.shapes)} arrays of shapes {shown}" if self.shapes else "no arrays"


class Stopwatch:
    """Which part of a call goes on, and for how long each did: one at any moment, `wait` at first.

    >>> watch = Stopwatch()
    >>> before = watch.turn("send")
    >>> watch.turn(before)
    'send'
    >>> round(watch.times().send)
    0
    """

    __slots__ = ("_part", "_since_s", "_spent_s")

    def __init__(self) -> None:
        self._spent_s: dict[Part, float] = dict.fromkeys(get_args(Part), 0.0)
        self._part: Part = "wait"
        self._since_s = time.perf_counter()

    def turn(self, part: Part) -> Part:
        """From now on it is this part; returns which it was."""
        now, before = time.perf_counter(), self._part
        self._spent_s[before] += now - self._since_s
        self._since_s, self._part = now, part
        return before

    def times(self) -> Times:
        """So far."""
        self.turn(self._part)
        return Times(**self._spent_s)


def within_wait(outer: Times, inner: Times) -> Times:
    """The times of one who waited while another worked for it: those of the inner one are of the outer's wait."""
    spent = {name: seconds + getattr(inner, name) for name, seconds in asdict(outer).items()}
    return Times(**spent | {"wait": outer.wait - inner.total + inner.wait})
