"""Files that must survive a power cut."""

import os
from pathlib import Path


def write_synced(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file in one step: after a crash it has the old content or the new one."""
    temporary = path.with_name(f".{path.name}")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring a folder's entries to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
