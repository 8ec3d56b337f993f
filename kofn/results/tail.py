"""The lines of a file that another process appends to."""

from pathlib import Path
from typing import BinaryIO


class LineTail:
    """Reads what was appended since the last time; the file may not exist yet."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened before the first read."""
        self.path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Every complete new line that is not empty; an unfinished one waits for the next time."""
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
