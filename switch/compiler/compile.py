"""C text to a shared library, once: the result is kept under ~/.cache/kofn by a hash of everything that went into it.

Set KOFN_CACHE to keep it elsewhere, CC to use another compiler, KOFN_KEEP_C=1 to find the C text beside the library.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from switch.errors import CompileError, CompilerMissing

RUNTIME = Path(__file__).parents[1] / "runtime"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O3", "-march=native", "-fPIC", "-shared", "-pthread")
MISSING = (
    "no C compiler ({command}) was found; the embedded switch compiles each P4 program to native code. "
    "Install one (Debian, Ubuntu: apt install gcc libc6-dev), or name it in CC"
)


def compile_program(text: str) -> Path:
    """The shared library of a generated program.  Raises CompilerMissing, CompileError."""
    return _compile({"program.c": text}, ["program.c"])


def compile_runtime() -> Path:
    """The shared library of the runtime.  Raises CompilerMissing, CompileError."""
    sources = sorted(RUNTIME.glob("*.c"))
    return _compile({}, [str(path) for path in sources])


def _compile(texts: dict[str, str], sources: Sequence[str]) -> Path:
    """Build `sources`, with `texts` as files beside them, unless the cache has it."""
    compiler = _compiler()
    library = _cache() / f"{_digest(texts, compiler)}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        for name, text in texts.items():
            Path(folder, name).write_text(text)
        built = Path(folder, "library.so")
        command = [*compiler, *FLAGS, "-I", str(RUNTIME), "-o", str(built), *sources]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise CompileError(f"{shlex.join(command)} failed:\n{result.stderr}")
        if os.environ.get("KOFN_KEEP_C"):
            for name, text in texts.items():
                library.with_suffix(f".{name}").write_text(text)
        os.replace(built, library)
    return library


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise CompilerMissing(MISSING.format(command=command[0] if command else "CC is empty"))
    return command


def _cache() -> Path:
    folder = Path(os.environ.get("KOFN_CACHE") or Path.home() / ".cache" / "kofn")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _digest(texts: dict[str, str], compiler: Sequence[str]) -> str:
    """All that the library depends on: texts, runtime, flags, compiler and, for -march=native, the CPU."""
    digest = hashlib.sha256()
    runtime = {path.name: path.read_text() for path in RUNTIME.glob("*.[ch]")}
    for part in (runtime, texts, FLAGS, tuple(compiler), _version(tuple(compiler)), _cpu()):
        digest.update(repr(sorted(part.items()) if isinstance(part, dict) else part).encode())
    return digest.hexdigest()[:40]


@cache
def _version(compiler: tuple[str, ...]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout


@cache
def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.split("\t")[0].strip() in wanted}))
