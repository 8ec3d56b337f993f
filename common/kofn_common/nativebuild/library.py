"""Compiles C text to a shared library, once: the result is kept under ~/.cache/kofn by a hash of all its inputs.

The first process that needs a library builds it; others wait for it. The cache keeps the KEPT libraries that were used
last; a process may go on using a removed library.

Set KOFN_CACHE to keep libraries elsewhere, CC to use another compiler, KOFN_KEEP_C=1 to find the C text beside the
library.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from kofn_common.nativebuild.errors import CompileError, CompilerMissing
from kofn_common.results.files import sync_folder, write_synced

FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
FASTEST = ("-O3",)
KEPT = 512
BUILDING = "building-"
"""The beginning of the name of a builder's folder in the cache."""
ABANDONED_S = 3600.0
"""The age at which a builder's folder is taken to belong to a builder that was killed."""
MISSING = (
    "no C compiler ({command}) was found; P4 programs and a worker's ledger are compiled to native code, and "
    "codecs where they can be. "
    "Install one (Debian, Ubuntu: apt install gcc libc6-dev), or name it in CC"
)

Signatures = Mapping[str, tuple[Any, Sequence[Any]]]
"""A library's functions: their results and arguments, in ctypes' terms."""


def compile_file(source: Path, *, include: Path | None = None) -> Path:
    """Return the shared library of one C file; `include` is a folder of headers. Raise
    CompilerMissing, CompileError."""
    return compile_texts({source.name: source.read_text()}, [source.name], include=include)


def load_library(path: Path, signatures: Signatures) -> ctypes.CDLL:
    """Return a shared library whose functions of these names have these types. Raise OSError."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def compile_texts(
    texts: Mapping[str, str],
    sources: Sequence[str],
    *,
    include: Path | None = None,
    optimise: Sequence[str] = FASTEST,
) -> Path:
    """Return the shared library of `sources`: names in `texts`, or files in `include`, which is searched for headers,
    too.

    `optimise`: the compiler's flags that trade compile time for the library's speed. The library is built unless the
    cache has it. Raises CompilerMissing, CompileError.
    """
    compiler = compiler_command()
    included = {path.name: path.read_text() for path in include.glob("*.[ch]")} if include else {}
    flags = (*FLAGS, *optimise)
    library = cache_folder() / f"{_digest(texts, included, compiler, flags)}.so"
    if not _is_whole(library):
        with one_builder(library):
            if not _is_whole(library):
                _build(library, texts, sources, include, [*compiler, *flags])
        _prune(library.parent)
    _note_use(library)
    return library


@contextlib.contextmanager
def one_builder(file: Path) -> Iterator[None]:
    """Wait for other builders of a file in the cache. The kernel frees the lock of a builder that dies."""
    path = file.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # no lock: several processes build the file, and the last build is kept
            lock = held.enter_context(path.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            held.callback(
                fcntl.flock, lock, fcntl.LOCK_UN
            )  # closing does not suffice: a forked child may have the file open
            held.callback(path.unlink, missing_ok=True)
        yield


def _build(
    library: Path, texts: Mapping[str, str], sources: Sequence[str], include: Path | None, compiler: Sequence[str]
) -> None:
    """Compile and link in a folder beside the library, append a checksum, and move the result to its place."""
    with _folder_beside(library) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text)
        headers = ("-I", str(include)) if include else ()
        objects = [f"{number}.o" for number in range(len(sources))]
        commands = [[*compiler, *headers, "-c", "-o", *pair] for pair in zip(objects, sources, strict=True)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(partial(_run, folder), commands))
        built = folder / "library.so"
        _run(folder, [*compiler, "-o", str(built), *objects])
        if os.environ.get("KOFN_KEEP_C"):
            for name, text in texts.items():
                library.with_suffix(f".{name}").write_text(text)
        content = built.read_bytes()
        write_synced(built, content, hashlib.sha256(content).digest())
        os.replace(built, library)
        sync_folder(library.parent)


def _is_whole(library: Path) -> bool:
    """Return whether a library exists, and ends with the checksum of its content: a disk may have damaged it."""
    try:
        data = library.read_bytes()
    except FileNotFoundError:
        return False
    end = len(data) - hashlib.sha256().digest_size
    return end > 0 and hashlib.sha256(data[:end]).digest() == data[end:]


@contextlib.contextmanager
def _folder_beside(library: Path) -> Iterator[Path]:
    """Yield a folder beside the library. Raise OSError, with a remedy, if the cache cannot be written."""
    try:
        folder = tempfile.TemporaryDirectory(dir=library.parent, prefix=BUILDING)
    except OSError as error:
        raise _unusable(library.parent, "written", error) from error
    with folder as name:
        yield Path(name)


def _run(folder: Path, command: Sequence[str]) -> None:
    """Run a command. Raise CompileError with the compiler's output."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CompileError(f"{shlex.join(command)} failed:\n{result.stderr}")


def _note_use(library: Path) -> None:
    """Set the access time, because file systems often do not keep it. The modification time, that of the build,
    stays."""
    with contextlib.suppress(OSError):  # the cache is read-only, or another user's
        os.utime(library, ns=(time.time_ns(), library.stat().st_mtime_ns))


def _prune(folder: Path) -> None:
    """Remove all but the KEPT libraries used last, their C text, and folders of killed builders."""
    with contextlib.suppress(FileNotFoundError):  # another process does the same, and will finish
        by_use = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_atime_ns, reverse=True)
        for library in by_use[KEPT:]:
            for path in folder.glob(f"{library.stem}.*"):
                path.unlink()
        for building in folder.glob(f"{BUILDING}*"):
            if building.stat().st_mtime < time.time() - ABANDONED_S:
                shutil.rmtree(building, ignore_errors=True)


def compiler_command() -> list[str]:
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise CompilerMissing(MISSING.format(command=command[0] if command else "CC is empty"))
    return command


def cache_folder() -> Path:
    """Return the folder of the libraries, and of other files that are made once for a machine. Raise OSError, with a
    remedy, if the folder cannot be made."""
    folder = Path(os.environ.get("KOFN_CACHE") or Path.home() / ".cache" / "kofn")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, "made", error) from error
    return folder


def _unusable(folder: Path, done: str, error: OSError) -> OSError:
    return OSError(
        f"{folder}, where compiled libraries are kept, cannot be {done}: {error.strerror}; KOFN_CACHE names another"
    )


def _digest(
    texts: Mapping[str, str], included: Mapping[str, str], compiler: Sequence[str], flags: tuple[str, ...]
) -> str:
    """Return a hash of all that the library depends on: texts, headers, flags, compiler and, for -march=native, the
    CPU."""
    digest = hashlib.sha256()
    for part in (included, texts, flags, tuple(compiler), _version(tuple(compiler)), _cpu()):
        digest.update(repr(sorted(part.items()) if isinstance(part, Mapping) else part).encode())
    return digest.hexdigest()[:40]


@cache
def _version(compiler: tuple[str, ...]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout


@cache
def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.split("\t")[0].strip() in wanted}))
