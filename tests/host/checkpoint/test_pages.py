"""Files of parts that each begin on a page, with and without direct writes."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
import xxhash

from kofn_host.arrays import in_pages
from kofn_host.checkpoint.pages import PAGE, next_page, write_pages

SIZES = [0, 1, PAGE, PAGE + 1, 3 * PAGE - 1, 100_000]


def part(size: int) -> memoryview:
    found = in_pages(size)[:size]
    found[:] = os.urandom(size)
    return found


def parts_of(content: bytes, sizes: list[int]) -> list[bytes]:
    found, at = [], 0
    for size in sizes:
        found.append(content[at : at + size])
        at = next_page(at + size)
    assert len(content) == at
    return found


def test_each_part_begins_on_a_page(tmp_path: Path) -> None:
    parts = [part(size) for size in SIZES]
    digest = write_pages(tmp_path / "file", parts)
    content = (tmp_path / "file").read_bytes()
    assert parts_of(content, SIZES) == [bytes(one) for one in parts]
    assert digest == xxhash.xxh3_128(content).hexdigest()


def test_parts_that_begin_on_no_page_are_written_all_the_same(tmp_path: Path) -> None:
    parts = [part(size + 8)[8:] for size in SIZES]
    write_pages(tmp_path / "file", parts)
    assert parts_of((tmp_path / "file").read_bytes(), SIZES) == [bytes(one) for one in parts]


def test_file_system_that_refuses_direct_writes_gets_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refused = os.write, 0

    def refusing(opened: int, data: memoryview) -> int:
        nonlocal refused
        if fcntl.fcntl(opened, fcntl.F_GETFL) & os.O_DIRECT:
            refused += 1
            raise OSError(errno.EINVAL, "refused")
        return write(opened, data[:10_000])

    monkeypatch.setattr(os, "write", refusing)
    one = part(100_000)
    write_pages(tmp_path / "file", [one])
    assert (tmp_path / "file").read_bytes()[:100_000] == one
    assert refused == 1
