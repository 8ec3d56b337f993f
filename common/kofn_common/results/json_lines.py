"""Reads files with one JSON value a line, which another process may still append to."""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from kofn_common.results.errors import ResultsError

log = logging.getLogger(__name__)

T = TypeVar("T")


def read_json_lines(path: Path, kind: type[T]) -> list[T]:
    """Return the values of all complete lines, as decoded() does; none without a file."""
    if not path.exists():
        return []
    return list(decoded(path.read_bytes().split(b"\n")[:-1], msgspec.json.Decoder(kind).decode, path))


def decoded(lines: Iterable[bytes], decode: Callable[[bytes], T], source: Path) -> Iterator[T]:
    """Yield the decoded JSON lines of the file `source`. A line that is no JSON, as a power cut leaves it, is logged
    and skipped; ResultsError if a line is JSON of another form."""
    for line in lines:
        try:
            value = decode(line)
        except msgspec.ValidationError as error:
            message = f"{source}: a line must have the fields of docs/reference/results.md, got {line[:80]!r}: {error}"
            raise ResultsError(message) from error
        except ValueError as error:
            log.warning("%s: skipping a damaged line: %s: %r", source, error, line[:80])
            continue
        yield value
