"""Files that must survive a power cut."""

import errno
import fcntl
import mmap
import os
from pathlib import Path

CHUNK = 4 << 20
"""Bytes of one write."""


def write_synced(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file in one step: after a crash it has the old content or the new one.

    The bytes do not pass through the page cache, where the file system permits that: filling it takes more processor
    time than all else.
    """
    temporary = path.with_name(f".{path.name}")
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        _write(opened, parts)
        os.fsync(opened)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(opened)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring a folder's entries to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _write(opened: int, parts: tuple[bytes | memoryview, ...]) -> None:
    """Write the parts by whole pages from one buffer, as direct writes need it, and cut off what fills the last."""
    _set_direct(opened, True)
    buffer = memoryview(mmap.mmap(-1, CHUNK))
    size = filled = 0
    for part in parts:
        rest = memoryview(part)
        while rest:
            some = min(len(rest), CHUNK - filled)
            buffer[filled : filled + some] = rest[:some]
            rest, filled, size = rest[some:], filled + some, size + some
            if filled == CHUNK:
                _write_chunk(opened, buffer)
                filled = 0
    _write_chunk(opened, buffer[: -(-filled // mmap.PAGESIZE) * mmap.PAGESIZE])
    os.ftruncate(opened, size)


def _write_chunk(opened: int, rest: memoryview) -> None:
    while rest:
        try:
            rest = rest[os.write(opened, rest) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not _set_direct(opened, False):
                raise


def _set_direct(opened: int, direct: bool) -> bool:
    """Let writes pass by the page cache, or not; return whether that has changed anything."""
    flags = fcntl.fcntl(opened, fcntl.F_GETFL)
    wanted = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(opened, fcntl.F_SETFL, wanted)
    except OSError:  # this file system has no direct writes
        return False
    return wanted != flags
