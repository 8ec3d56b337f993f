"""JSON as kofn writes it: numbers that are not finite, which JSON lacks, become null."""

from typing import Any

import msgspec


def json_text(value: Any, *, indent: int = 0) -> str:
    """Return builtins, dataclasses and msgspec's structs as JSON; without `indent` in one line.

    >>> json_text({"loss": float("nan"), "k": (2, 3)})
    '{"loss": null, "k": [2, 3]}'
    """
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_scalar), indent=indent).decode()


def _scalar(value: Any) -> Any:
    """Return a number of NumPy that is a float of Python as a plain float."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is not written as JSON")
