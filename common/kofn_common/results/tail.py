"""The lines of a file that another process appends to."""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from kofn_common.results.errors import ResultsError

log = logging.getLogger(__name__)

T = TypeVar("T")


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


class LineTail:
    """Reads the lines appended since the last read; the file may not exist yet."""

    def __init__(self, path: Path) -> None:
        """Prepare reading; the file is opened at the first read."""
        self.path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Return every complete new line that is not empty; an incomplete line waits for the next read."""
        if self._file is None:
            if not self.path.exists():
                return []
            self._file = self.path.open("rb")
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line for line in lines if line.strip()]

    def close(self) -> None:
        """Close the file if it was opened."""
        if self._file is not None:
            self._file.close()
