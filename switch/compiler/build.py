"""Generated programs, and the runtime around them, as shared libraries."""

from pathlib import Path

from kofn.nativebuild.library import compile_texts

RUNTIME = Path(__file__).parents[1] / "runtime"


def compile_program(text: str) -> Path:
    """The shared library of a generated program.  Raises CompilerMissing, CompileError."""
    return compile_texts({"program.c": text}, ["program.c"], include=RUNTIME)


def compile_runtime() -> Path:
    """The shared library of the runtime.  Raises CompilerMissing, CompileError."""
    return compile_texts({}, [str(path) for path in sorted(RUNTIME.glob("*.c"))], include=RUNTIME)
