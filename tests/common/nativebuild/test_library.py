"""A library is built once, however many need it at the same time, even if its builder dies."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from kofn_common.nativebuild.library import ABANDONED_S, BUILDING, compile_texts, load_library
from tests.common.nativebuild.compiler import NotingCompiler
from tests.waiting import until

BUILD = "from kofn_common.nativebuild.library import compile_texts; print(compile_texts({'x.c': 'int x;'}, ['x.c']))"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOFN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotingCompiler]:
    made = NotingCompiler(tmp_path)
    monkeypatch.setenv("CC", made.command)
    yield made
    made.go()


def build() -> Path:
    return compile_texts({"x.c": "int x;"}, ["x.c"])


def builders(count: int) -> list["subprocess.Popen[str]"]:
    return [subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True) for _ in range(count)]


def waits(pid: int) -> bool:
    """Whether a process waits for a lock."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(line[1] == "->" and line[5] == str(pid) for line in lines)


def test_one_process_builds_and_the_others_wait(cache: Path, compiler: NotingCompiler) -> None:
    processes = builders(3)
    until(lambda: compiler.compiled + sum(waits(process.pid) for process in processes) == 3)
    compiler.go()
    printed = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert compiler.compiled == 1
    assert printed == {str(path) for path in cache.iterdir()}, (
        "the cache has the library, and neither a lock nor a folder"
    )


def test_killed_builder_delays_no_other(cache: Path, compiler: NotingCompiler) -> None:
    (first,) = builders(1)
    until(lambda: compiler.compiled == 1)
    (second,) = builders(1)
    until(lambda: waits(second.pid))
    first.kill()
    first.communicate()
    until(lambda: compiler.compiled == 2)
    compiler.go()
    library = second.communicate(timeout=60)[0].strip()
    (left,) = cache.glob(f"{BUILDING}*")
    assert {str(path) for path in cache.iterdir()} == {library, str(left)}
    old_s = left.stat().st_mtime - ABANDONED_S
    os.utime(left, (old_s, old_s))
    assert compile_texts({"y.c": "int y;"}, ["y.c"]).exists()
    assert not left.exists()


def test_threads_wait_for_each_other_like_processes(cache: Path, compiler: NotingCompiler) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(build) for _ in range(2)]
        until(lambda: compiler.compiled + waits(os.getpid()) == 2)
        compiler.go()
        assert {one.result() for one in both} == set(cache.iterdir())
    assert compiler.compiled == 1


def test_library_is_built_where_locks_are_unavailable(
    cache: Path, compiler: NotingCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    compiler.go()
    assert build().exists()


def test_read_only_cache_serves_its_libraries(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = build()

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("utime", "mkdir", "open"):
        monkeypatch.setattr(f"os.{name}", refuse)
    assert build() == library


def test_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOFN_CACHE", "/sys")
    with pytest.raises(OSError, match=r"^/sys, where compiled .* cannot be written: .*; KOFN_CACHE names another$"):
        build()


def test_damaged_library_is_built_again(cache: Path) -> None:
    """A power cut may leave no content, half of it, or zeros."""
    whole = (library := build()).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], bytes(len(whole)), whole[:400] + b"\1" + whole[401:]):
        library.unlink()
        library.write_bytes(damaged)
        assert build() == library
        load_library(library, {})
        assert library.read_bytes() == whole
    assert list(cache.iterdir()) == [library]


def test_library_is_on_the_disk_before_it_has_its_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, replace = list[int](), os.replace
    monkeypatch.setattr("os.fsync", lambda file: synced.append(os.fstat(file).st_ino))

    def checked(source: Path, target: Path) -> None:
        assert source.stat().st_ino in synced
        replace(source, target)

    monkeypatch.setattr("os.replace", checked)
    assert build().exists() and cache.stat().st_ino in synced
