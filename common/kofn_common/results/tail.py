"""The lines of a file that another process appends to."""

from pathlib import Path
from typing import BinaryIO


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
