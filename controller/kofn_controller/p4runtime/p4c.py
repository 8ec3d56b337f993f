"""Compiles a data plane's P4 source, unless build/ in its folder has p4c's output of the same sources.

python -m kofn_controller.p4runtime.p4c SOURCE... compiles in any case (`make p4`).
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from kofn_common.config.errors import ConfigError
from kofn_common.places import folder_of
from kofn_controller.p4runtime.program import CompiledProgram

COMPILER = "p4c-bm2-ss"
INCLUDE = folder_of("kofn_p4src") / "include"
"""Searched for #include, after the source's own folder."""

_INCLUDED = re.compile(r'^\s*#include\s+"(.+)"', re.MULTILINE)


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of p4c's output, in build/NAME.stamp.json."""

    p4c: str
    """The line in which p4c says its version."""
    sources: str
    """SHA-256 over the names and texts of the source and all that it includes."""
    outputs: str
    """SHA-256 over the JSON and the p4info."""

    @classmethod
    def read(cls, program: Path) -> "Stamp | None":
        """Return the stamp of a source's output, None if there is none or it is not a stamp."""
        try:
            return msgspec.json.decode(_stamp_of(program).read_bytes(), type=cls)
        except (FileNotFoundError, ValueError):
            return None


def compiled(program: Path) -> CompiledProgram:
    """Return p4c's output of a program.

    For a P4 source, the output is in build/ in the source's folder; the source is compiled first if it or an included
    file has changed. For p4c's JSON, the output is the JSON file and the p4info in the same folder.

    ConfigError if a file or p4c is missing, or p4c refuses the source.
    """
    if not program.is_file():
        raise ConfigError(f"{program}: no such file: a data plane's program must be a P4 source or p4c's JSON")
    if program.suffix == ".json":
        return CompiledProgram(p4info=program.with_suffix(".p4info.txtpb"), blob=program)
    stamp = Stamp.read(program)
    if stamp is None or stamp.sources != sources_hash(program):
        compile_program(program)
    return output_of(program)


def output_of(program: Path) -> CompiledProgram:
    """Return the files that p4c writes for a source."""
    build = program.parent / "build"
    return CompiledProgram(p4info=build / f"{program.stem}.p4info.txtpb", blob=build / f"{program.stem}.json")


def sources_hash(program: Path) -> str:
    digest, found = hashlib.sha256(), [program]
    for path in found:
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
        for name in _INCLUDED.findall(path.read_text()):
            candidates = (folder / name for folder in (path.parent, INCLUDE))
            found += [file for file in candidates if file.is_file() and file not in found][:1]
    return digest.hexdigest()


def outputs_hash(program: Path) -> str:
    files = output_of(program)
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in (files.blob, files.p4info))).hexdigest()


def compiler_version() -> str:
    run = subprocess.run([COMPILER, "--version"], check=True, capture_output=True, text=True)
    lines = (run.stdout + run.stderr).splitlines()  # p4c writes its version to standard error
    return next(line for line in lines if line.startswith("Version"))


def compile_program(program: Path) -> Stamp:
    """Compile a source into build/ in its folder. ConfigError if p4c is missing, or refuses the source."""
    if shutil.which(COMPILER) is None:
        raise ConfigError(
            f"{program}: {COMPILER} must be on the PATH to compile it (package p4lang-p4c of the p4lang repositories,"
            " or github.com/p4lang/p4c); or give its output, a .json beside its .p4info.txtpb"
        )
    files = output_of(program)
    files.blob.parent.mkdir(exist_ok=True)
    command = [COMPILER, "--arch", "v1model", "-I", "src", "-I", "include"]
    command += ["-o", f"build/{files.blob.name}", "--p4runtime-files", f"build/{files.p4info.name}", program.name]
    with tempfile.TemporaryDirectory() as name:
        # p4c gets copies, because p4c deletes a source that it cannot preprocess, as when a path has a space.
        folder = Path(name)
        (folder / "build").mkdir()
        (folder / "src").symlink_to(program.parent.resolve())
        (folder / "include").symlink_to(INCLUDE)
        for path in program.parent.glob("*.p4"):
            shutil.copy(path, folder)
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ConfigError(f"{program}: p4c refuses it:\n{result.stderr.strip()}")
        for path in (folder / "build").iterdir():
            shutil.copy(path, files.blob.parent)
    stamp = Stamp(p4c=compiler_version(), sources=sources_hash(program), outputs=outputs_hash(program))
    _stamp_of(program).write_bytes(msgspec.json.format(msgspec.json.encode(stamp)) + b"\n")
    return stamp


def _stamp_of(program: Path) -> Path:
    return program.parent / "build" / f"{program.stem}.stamp.json"


def main() -> int:
    """Compile the sources of the command line; exit code 2 if a source cannot be compiled."""
    try:
        for name in sys.argv[1:]:
            stamp = compile_program(Path(name))
            print(f"{name}: {stamp.p4c}, sources {stamp.sources[:12]}")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
