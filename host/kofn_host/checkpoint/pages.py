"""Files whose parts begin on pages, as direct writes need it.

Direct writes bypass the page cache, because filling it would take more processor time than the rest of writing.
"""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import xxhash

from kofn_host.arrays import in_pages

PAGE = 4096


def write_pages(path: Path, parts: Iterable[memoryview]) -> str:
    """Write and sync a file; return its checksum (XXH3, 128 bits).  If writing fails, the file is removed.

    Writes are direct if the file system and the addresses of the parts permit it.
    """
    checksum = xxhash.xxh3_128()
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        _set_direct(opened, True)
        for piece in _pieces(parts):
            checksum.update(piece)
            _write(opened, piece)
        os.fsync(opened)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(opened)
    return checksum.hexdigest()


def next_page(at: int) -> int:
    """Return the first position from `at` on at which a page begins."""
    return -(-at // PAGE) * PAGE


def _pieces(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield each part's whole pages, then the part's rest with zeros up to a page."""
    for part in parts:
        whole = len(part) // PAGE * PAGE
        if whole:
            yield part[:whole]
        if rest := part[whole:]:
            page = in_pages(PAGE)
            page[: len(rest)] = rest
            yield page


def _write(opened: int, rest: memoryview) -> None:
    while rest:
        try:
            rest = rest[os.write(opened, rest) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not _set_direct(opened, False):
                raise


def _set_direct(opened: int, direct: bool) -> bool:
    """Let writes bypass the page cache, or not; return whether this has changed the file's flags."""
    flags = fcntl.fcntl(opened, fcntl.F_GETFL)
    wanted = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(opened, fcntl.F_SETFL, wanted)
    except OSError:  # this file system has no direct writes
        return False
    return wanted != flags
