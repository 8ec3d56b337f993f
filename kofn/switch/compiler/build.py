"""Programs, and the runtime around them, as shared libraries."""

from dataclasses import dataclass
from pathlib import Path

from kofn.nativebuild.library import compile_texts
from kofn.switch.compiler.codegen.codegen import generate
from kofn.switch.compiler.ir.program import Program, Target
from kofn.switch.compiler.reader.reader import read_program

RUNTIME = Path(__file__).parents[1] / "runtime"
OPTIMISE = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic")
"""As fast as -O3 in all that packets go through, and compiled in three quarters of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A program that can be loaded."""

    document: bytes  # p4c's JSON
    program: Program
    library: Path


def build_program(document: bytes, target: Target | None = None) -> Built:
    """Read, generate, compile.  Raises ProgramError, CompilerMissing, CompileError."""
    program = read_program(document)
    return Built(document=document, program=program, library=compile_program(generate(program, target)))


def compile_program(text: str) -> Path:
    """The shared library of a generated program.  Raises CompilerMissing, CompileError."""
    return compile_texts({"program.c": text}, ["program.c"], include=RUNTIME, optimise=OPTIMISE)


def compile_runtime() -> Path:
    """The shared library of the runtime.  Raises CompilerMissing, CompileError."""
    sources = [str(path) for path in sorted(RUNTIME.glob("*.c"))]
    return compile_texts({}, sources, include=RUNTIME, optimise=OPTIMISE)
