"""Compiles a data plane's P4 source, unless build/ in its folder has p4c's output of the same sources."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from kofn.config.errors import ConfigError
from kofn.controller.p4runtime.program import CompiledProgram

COMPILER = "p4c-bm2-ss"
INCLUDE = Path(__file__).resolve().parents[2] / "p4src" / "include"
"""Searched for #include, after the source's own folder."""


def compiled(program: Path) -> CompiledProgram:
    """Return p4c's output: of a source the files in build/ in its folder, compiled now if its sources have changed; of
    p4c's JSON itself, and its p4info in the same folder.

    ConfigError if a file is missing, or p4c is, or refuses the source.
    """
    if not program.is_file():
        raise ConfigError(f"{program}: no such file: a data plane's program must be a P4 source or p4c's JSON")
    if program.suffix == ".json":
        return CompiledProgram(p4info=program.with_suffix(".p4info.txtpb"), blob=program)
    build = program.parent / "build"
    stamp, wanted = build / f"{program.stem}.sources", sources_hash(program)
    files = CompiledProgram(p4info=build / f"{program.stem}.p4info.txtpb", blob=build / f"{program.stem}.json")
    if not (stamp.is_file() and stamp.read_text().split()[0] == wanted):
        _compile(program, files)
        stamp.write_text(f"{wanted}\n")
    return files


def sources_hash(program: Path) -> str:
    """Return SHA-256 over the names and texts of all P4 files that the source may include, without its path."""
    digest = hashlib.sha256(program.name.encode())
    for folder in (program.parent, INCLUDE):
        for path in sorted(folder.glob("*.p4")):
            if folder == INCLUDE or path == program or f'"{path.name}"' in program.read_text():
                digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _compile(program: Path, files: CompiledProgram) -> None:
    if shutil.which(COMPILER) is None:
        raise ConfigError(
            f"{program}: {COMPILER} must be on the PATH to compile it (package p4lang-p4c); or give its output, a"
            " .json beside its .p4info.txtpb"
        )
    files.blob.parent.mkdir(exist_ok=True)
    command = [COMPILER, "--arch", "v1model", "-I", os.path.relpath(INCLUDE, program.parent)]
    command += ["-o", f"build/{files.blob.name}", "--p4runtime-files", f"build/{files.p4info.name}", program.name]
    result = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ConfigError(f"{program}: p4c refuses it:\n{result.stderr.strip()}")
