"""Documents that are JSON, but not what p4c writes: whatever is stumbled over in them is one kind of error."""

from collections.abc import Iterator
from contextlib import contextmanager

from kofn.switch.errors import ProgramError

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
    """A program that names what it does not have, or has something of another kind or size, raises ProgramError."""
    try:
        yield
    except STUMBLES as error:
        raise ProgramError(f"the BMv2 JSON contradicts its format: {error!r}") from error
