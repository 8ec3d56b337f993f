"""The command: every part in its own process under the sanitizers; exit code 1 when one finds something."""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.switch.fuzz import documents, frames, messages
from tests.switch.fuzz.programs import PROGRAMS
from tests.switch.fuzz.sanitized import environment

PARTS = {"frames": frames.run, "messages": messages.run, "documents": documents.run}


def main() -> int:
    """Run the parts one after another, or with --part one of them in this process."""
    options = _options()
    chosen = [program for program in PROGRAMS if not options.program or program.name in options.program]
    if options.part:
        PARTS[options.part](chosen, seconds=options.seconds, chance=random.Random(options.seed))
        return 0
    print(f"seed {options.seed}, {', '.join(program.name for program in chosen)}", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        started = environment(Path(cache))
        failed = [part for part in PARTS if _run(part, options, started) != 0]
    print(f"found something: {', '.join(failed)}" if failed else "nothing found")
    return 1 if failed else 0


def _run(part: str, options: argparse.Namespace, started: dict[str, str]) -> int:
    seconds = str(options.seconds / len(PARTS))
    numbers = ["--seconds", seconds, "--seed", str(options.seed), "--part", part]
    programs = [word for name in options.program or () for word in ("--program", name)]
    command = [sys.executable, "-m", "tests.switch.fuzz", *numbers, *programs]
    return subprocess.run(command, env=started, check=False).returncode


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.switch.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of all parts together, besides compiling")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="the same seed, the same inputs")
    parser.add_argument("--part", choices=PARTS, help="this one alone, in this process")
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--program", action="append", choices=names, help="repeat for several (default: all)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
