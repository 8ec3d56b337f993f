"""Compile kofn.p4 with p4c into build/, beside p4c's version and the sources' hash (`make p4`).

The output is committed, so nobody needs p4c to run kofn; a test recomputes `sources_hash` and fails when the sources
changed and the output did not.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent
BUILD = SOURCES / "build"
STAMP = BUILD / "stamp.json"
COMPILER = "p4c-bm2-ss"


def sources_hash() -> str:
    """SHA-256 over the names and texts of all P4 sources."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.p4")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def outputs_hash() -> str:
    """SHA-256 over p4c's two outputs, so that neither is edited by hand."""
    files = (BUILD / "kofn.json", BUILD / "kofn.p4info.txtpb")
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def compiler_version() -> str:
    """The line in which p4c says its version."""
    run = subprocess.run([COMPILER, "--version"], check=True, capture_output=True, text=True)
    lines = (run.stdout + run.stderr).splitlines()  # p4c writes it to standard error
    return next(line for line in lines if line.startswith("Version"))


def compile_program() -> None:
    """Run p4c; its own messages say what is wrong."""
    command = [COMPILER, "--arch", "v1model", "-o", "build/kofn.json"]
    command += ["--p4runtime-files", "build/kofn.p4info.txtpb", "kofn.p4"]
    subprocess.run(command, cwd=SOURCES, check=True)


def main() -> int:
    """Build and stamp; exit code 2 when there is no compiler."""
    if shutil.which(COMPILER) is None:
        print(
            f"make p4: {COMPILER} is not on the PATH. It is needed only to change p4src/: install p4c (package"
            " p4lang-p4c of the p4lang repositories, or build github.com/p4lang/p4c). The committed output in"
            " p4src/build/ runs without it.",
            file=sys.stderr,
        )
        return 2
    compile_program()
    stamp = {"p4c": compiler_version(), "sources": sources_hash(), "outputs": outputs_hash()}
    STAMP.write_text(json.dumps(stamp, indent=2) + "\n")
    print(f"p4src/build: {stamp['p4c']}, sources {stamp['sources'][:12]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
