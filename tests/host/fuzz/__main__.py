"""Random packets and calls at the protocol core and at the engine, under AddressSanitizer, UBSan and ThreadSanitizer.

python -m tests.host.fuzz --seconds 60 --seed 1
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from kofn_host.native import FOLDERS

HERE = Path(__file__).parent
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-fno-sanitize-recover=all", "-pthread")
PARTS = (("core", "address,undefined"), ("engine", "address,undefined"), ("engine", "thread"))
"""The programs of this folder with their sanitizers."""


def build(name: str, sanitizers: str, folder: Path) -> Path:
    """Compile a program with the sources that it tests."""
    program = folder / f"{name}-{sanitizers.partition(',')[0]}"
    sources = [str(source) for each in FOLDERS for source in sorted(each.glob("*.c"))]
    include = [f"-I{each}" for each in FOLDERS]
    command = [
        "cc",
        *FLAGS,
        f"-fsanitize={sanitizers}",
        *include,
        "-o",
        str(program),
        str(HERE / f"{name}.c"),
        *sources,
    ]
    subprocess.run([*command, "-lm"], check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="of all parts together")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kofn-") as folder:
        for name, sanitizers in PARTS:
            program = build(name, sanitizers, Path(folder))
            command = [str(program), str(options.seconds / len(PARTS)), str(options.seed)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            print(f"{name}, {sanitizers}: {done.stdout.strip()}", flush=True)
            if done.returncode:
                print(f"failed: {shlex.join(command[1:])} of {name} under {sanitizers}")
                return 1
    print("nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
