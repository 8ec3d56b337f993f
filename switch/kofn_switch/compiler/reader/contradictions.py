"""Turns errors on JSON that p4c would not write into one kind of error."""

from collections.abc import Iterator
from contextlib import contextmanager

from kofn_switch.errors import ProgramError

STUMBLES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)


@contextmanager
def contradictions() -> Iterator[None]:
    """Raise ProgramError for a program that refers to a missing object, or to one of another kind or size."""
    try:
        yield
    except STUMBLES as error:
        raise ProgramError(f"the BMv2 JSON contradicts its format: {error!r}") from error
