"""The description of a collective call, which must be the same at every worker, and the checks of its arguments."""

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from kofn_host.errors import CollectiveError

Array = npt.NDArray[Any]

Given = Array | np.generic
"""An array, or a NumPy scalar for an array without dimensions."""

CallKind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"]

Op = Literal["sum", "mean"]

FLOATING = ("float32", "float16", "bfloat16")
"""Floating dtypes; bfloat16 comes from ml_dtypes."""

DTYPES = (*FLOATING, "int32", "int64")


class Key(NamedTuple):
    """Identifies a call of a worker: its `number`-th call of this name, from 1; unnamed calls have the name ""."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name!r} #{self.number}" if self.name else f"#{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """The properties that all workers' calls of one Key share; `shape`: the shape of every worker's array.

    >>> print(CollectiveCall(kind="all_reduce", dtype="float32", shape=(3, 4), op="mean"))
    all_reduce(mean) of float32 (3, 4)
    """

    kind: CallKind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    op: Op | None = None
    root: int | None = None
    elastic: bool = False

    def __str__(self) -> str:
        detail = f"({self.op})" if self.op else f"(root {self.root})" if self.root is not None else ""
        arrays = f" of {self.dtype} {self.shape}" if self.dtype else ""
        return f"{'elastic ' if self.elastic else ''}{self.kind}{detail}{arrays}"


def named(ranks: Iterable[int]) -> str:
    """Return the workers' names for a message.

    >>> named([1]), named([1, 2])
    ('worker 1', 'workers 1 and 2')
    """
    numbers = [str(rank) for rank in ranks]
    return f"worker{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}"


def checked_array(array: object) -> Array:
    """Return the array; CollectiveError unless it is an array of DTYPES in native byte order."""
    if not isinstance(array, np.ndarray | np.generic):
        raise CollectiveError(f"array must be a NumPy array of {', '.join(DTYPES)}, got a {type(array).__name__}")
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise CollectiveError(f"array must be of {', '.join(DTYPES)} in native byte order, got {array.dtype}")
    return np.asarray(array)


def checked_out(out: Array | None, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
    """Return the array for the result, a new one if `out` is None."""
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or (out.dtype, out.shape) != (dtype, shape):
        found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else f"a {type(out).__name__}"
        raise CollectiveError(f"out must be an array of {dtype} {shape}, got {found}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        found = "not C-contiguous" if out.flags.writeable else "read-only"
        raise CollectiveError(f"out must be a writeable C-contiguous array, got {found}")
    return out


def check_op(op: Op, dtype: str) -> None:
    if op not in get_args(Op):
        raise CollectiveError(f"op must be 'sum' or 'mean', got {op!r}")
    if op == "mean" and dtype not in FLOATING:
        raise CollectiveError(f"op must be 'sum' for arrays of {dtype}, got 'mean': a mean needs {', '.join(FLOATING)}")


def check_elements(elements: int) -> None:
    if not _is_whole(elements) or elements < 1:
        raise CollectiveError(f"elements must be a whole number from 1 on, got {elements!r}")


def check_rank(what: str, rank: int, workers: int) -> None:
    if not _is_whole(rank) or not 0 <= rank < workers:
        raise CollectiveError(f"{what} must be 0 to {workers - 1} with {workers} workers, got {rank!r}")


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)
