"""Reads files with one JSON value a line, which another process may still append to."""

from pathlib import Path
from typing import TypeVar

import msgspec

from kofn_common.results.errors import ResultsError

T = TypeVar("T")


def read_json_lines(path: Path, kind: type[T]) -> list[T]:
    """Return the values of all complete lines; none without a file. ResultsError names a damaged line."""
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(kind)
    return [_value(decoder, line, f"{path}:{at}") for at, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1)]


def _value(decoder: "msgspec.json.Decoder[T]", line: bytes, place: str) -> T:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise ResultsError(f"{place}: a line must be the JSON of one value, got {line[:80]!r}: {error}") from error
