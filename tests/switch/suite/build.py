"""Compiles the suite's programs with p4c, in place: `python -m tests.switch.suite.build [NAME]...`.

The output is committed, so that running the suite needs no p4c; a test fails if the output is not that of the sources.
"""

import argparse
import subprocess
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
COMPILER = "p4c-bm2-ss"


def compile_program(source: Path) -> None:
    """Write NAME.json and NAME.p4info.txtpb beside NAME.p4; p4c prints errors."""
    outputs = ["-o", f"{source.stem}.json", "--p4runtime-files", f"{source.stem}.p4info.txtpb"]
    command = [COMPILER, "--std", "p4-16", "--arch", "v1model", *outputs, source.name]
    subprocess.run(command, cwd=source.parent, check=True)


def main() -> None:
    """Compile the named programs, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.switch.suite.build", description=__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    for source in sorted(PROGRAMS.glob("*.p4")):
        if not names or source.stem in names:
            compile_program(source)


if __name__ == "__main__":
    main()
