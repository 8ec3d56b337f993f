"""Runs a folder of packet scripts: `python -m tests.switch.suite FOLDER [--target NAME]... [NAME]...`.

Prints for each script and target whether it passed, was refused at loading, or failed, and the numbers of each.
"""

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from tests.switch.suite.script import Outcome, run_script
from tests.switch.suite.targets import PRESENT, TARGETS

PATIENCE_S = 120
MOST_REASONS = 4


def outcomes(scripts: list[Path], target: str) -> Iterator[tuple[Path, Outcome]]:
    """Run each script in its own process, so that a crash or hang fails this script only."""
    context = multiprocessing.get_context("fork")
    for script in scripts:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(theirs, script, target))
        process.start()
        theirs.close()
        yield script, _answer(ours)
        process.kill()
        process.join()


def _answer(pipe: "Connection[Outcome, Outcome]") -> Outcome:
    try:
        if pipe.poll(PATIENCE_S):
            return pipe.recv()
    except EOFError:
        return Outcome(verdict="wrong", reasons=("the process crashed",))
    return Outcome(verdict="wrong", reasons=(f"not done in {PATIENCE_S} s",))


def _child(pipe: "Connection[Outcome, Outcome]", script: Path, target: str) -> None:
    try:
        outcome = run_script(script, target)
    except Exception as error:  # any error fails the script; the next one follows
        outcome = Outcome(verdict="wrong", reasons=(f"{type(error).__name__}: {error}",))
    pipe.send(outcome)


def main() -> None:
    """Parse the arguments, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.switch.suite", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="only these scripts")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="default: all that are here")
    parser.add_argument("--passed", action="store_true", help="list those that passed, too")
    arguments = parser.parse_args()
    scripts = sorted(arguments.folder.glob("*.stf"))
    scripts = [script for script in scripts if script.with_suffix(".json").exists()]
    if arguments.names:
        scripts = [script for script in scripts if script.stem in arguments.names]
    for target in arguments.target or PRESENT:
        _run(scripts, target, arguments.passed)


def _run(scripts: list[Path], target: str, show_passed: bool) -> None:
    verdicts: Counter[str] = Counter()
    for script, outcome in outcomes(scripts, target):
        verdicts[outcome.verdict] += 1
        if show_passed or outcome.verdict != "passed":
            print(f"{target} {outcome.verdict:7} {script.stem}", flush=True)
        for reason in outcome.reasons[:MOST_REASONS]:
            print(f"    {reason}", flush=True)
    counts = ", ".join(f"{verdicts[word]} {word}" for word in ("passed", "refused", "wrong"))
    print(f"{target}: {counts}, of {len(scripts)}", flush=True)


if __name__ == "__main__":
    main()
