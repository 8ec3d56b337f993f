"""Files that must survive a power cut: written by whole pages, and as long as what was given."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from kofn.results.files import CHUNK, write_synced


@pytest.mark.parametrize("size", [0, 1, 4096, 5000, CHUNK, CHUNK + 1, 2 * CHUNK - 1])
def test_file_has_the_bytes_that_were_given(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(b"longer than before" * CHUNK)
    write_synced(path, content[: size // 3], memoryview(content)[size // 3 :])
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_file_system_that_refuses_direct_writes_gets_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refused = os.write, 0

    def refusing(opened: int, data: memoryview) -> int:
        nonlocal refused
        if fcntl.fcntl(opened, fcntl.F_GETFL) & os.O_DIRECT:
            refused += 1
            raise OSError(errno.EINVAL, "refused")
        return write(opened, data[:100_000])

    monkeypatch.setattr(os, "write", refusing)
    content = os.urandom(CHUNK + 7)
    write_synced(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == content
    assert refused == 1


def test_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(opened: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    path.write_bytes(b"before")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_synced(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
