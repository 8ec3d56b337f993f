"""The contributions per second that the embedded switch, BMv2 and bare reflectors take.  Needs root and cc.

    python -m bench.switch_loop [--target embedded] [--ports 2] [--values 256] [--lanes onebit] [--rounds 9] [--json]

A worker behind each port (kofn/experiments/load/switch_loop.c) keeps a window of blocks in flight: contributions in,
sums of all workers out, in a closed loop. A reflector (reflector.c beside it) moves the same frames unread: the limit
that the kernel sets. The embedded switch and "gso-reflector" have workers that coalesce their packets, as kofn's do;
the workers of "no-gso" (the embedded switch without GSO), of BMv2 and of "reflector" send single frames. Switches are
started as `kofn run` starts them and set up through P4Runtime as the controller does it. "unchecked" (only when asked
for) is the embedded switch with the same program, but without the checksum over header and values. --lanes chooses the
lanes of packets of as many bytes: votes have eight times as many elements as int8, and answers that are longer, which
BMv2 does not survive.

All targets are up at the same time, each between separate links, and take short turns, so that other load of the
machine affects all of them.  A ratio compares two turns of one round; rates and ratios are medians over the rounds.
The exit code is 1 when the embedded switch misses a goal: 15 times BMv2, 4 times the reflector and 0.3 of the
gso-reflector at 256 values, 12 times BMv2, 1.8 times the reflector and 0.45 of the gso-reflector at 2048.
"""

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.tables import whole
from kofn.experiments.load.targets import TARGETS, LoadTarget, Turn, laboratory, layout, missing, running
from kofn_host.kernels.lanes import VOTES, code_of

PORTS = (2, 8)
VALUES = (256, 2048)  # int32 in a packet
SUBJECT = "embedded"
LANES = {"int32": 32, "int8": 8, "onebit": VOTES}  # bits
GOALS = {
    ("bmv2", 256): 15.0,
    ("bmv2", 2048): 12.0,
    ("reflector", 256): 4.0,
    ("reflector", 2048): 1.8,
    ("gso-reflector", 256): 0.3,
    ("gso-reflector", 2048): 0.45,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All turns with one number of ports and of values in some lanes; each list has an item a round."""

    ports: int
    values: int
    lanes: str
    turns: dict[str, list[Turn]]

    def rate(self, name: str) -> float:
        return statistics.median(turn.rate for turn in self.turns[name])

    def elements(self, name: str) -> float:
        """Return the elements a second."""
        return self.rate(name) * self.values * 32 / LANES[self.lanes]

    def ratio(self, other: str) -> float:
        """Return the median over the rounds of the embedded switch's rate over another target's."""
        pairs = zip(self.turns[SUBJECT], self.turns[other], strict=True)
        return statistics.median(mine.rate / theirs.rate for mine, theirs in pairs)

    def others(self) -> list[str]:
        """Targets that there is a ratio to."""
        return [name for name in self.turns if name != SUBJECT] if SUBJECT in self.turns else []

    def missed(self) -> Iterator[str]:
        """The goals that are not met, as sentences."""
        for other in self.others():
            goal, ratio = GOALS.get((other, self.values), 0.0), self.ratio(other)
            if ratio < goal and self.lanes == "int32":
                yield f"{self.ports} ports, {self.values} values: {ratio:.3f} x {other}, the goal is {goal:g}"

    def lost(self) -> Iterator[str]:
        for name, turns in self.turns.items():
            if lost := sum(turn.lost for turn in turns):
                yield f"{self.ports} ports, {self.values} values: {name} left {lost} contributions without a result"

    def as_json(self) -> dict[str, Any]:
        return {
            "ports": self.ports,
            "values": self.values,
            "lanes": self.lanes,
            "elements": {name: self.elements(name) for name in self.turns},
            "rates": {name: self.rate(name) for name in self.turns},
            "ratios": {other: self.ratio(other) for other in self.others()},
            "missed": list(self.missed()),
            "rounds": {name: [asdict(turn) for turn in turns] for name, turns in self.turns.items()},
        }


def measure(ports: int, folder: Path, options: argparse.Namespace) -> Iterator[Case]:
    """All cases with one number of ports."""
    cases = [
        Case(ports=ports, values=values, lanes=lanes, turns={name: [] for name in options.target})
        for values in options.values
        for lanes in options.lanes
    ]
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(running(name, folder, ports)) for name in options.target]
        for number in range(options.rounds):
            show(f"{ports} ports, round {number + 1} of {options.rounds}")
            for case in cases:
                take_turns(case, targets[number % len(targets) :] + targets[: number % len(targets)], options)
    return iter(cases)


def take_turns(case: Case, targets: Sequence[LoadTarget], options: argparse.Namespace) -> None:
    """One of each target; another one begins in each round."""
    for target in targets:
        turn = target.turn(
            seconds=options.seconds, size=4 * case.values, window=options.window, lanes=code_of(LANES[case.lanes])
        )
        case.turns[target.name].append(turn)


def table(cases: Sequence[Case], targets: Sequence[str]) -> Iterator[str]:
    """A row for each case: median rates, and the embedded switch's ratios to the others."""
    others, elements = cases[0].others(), targets if len({case.lanes for case in cases}) > 1 else ()
    columns = *targets, *(f"{name}, elements" for name in elements), *map(ratio_name, others)
    yield " | ".join(["ports", "values", " lanes", *(f"{column:>18}" for column in columns)])
    for case in cases:
        rates = [f"{case.rate(name):,.0f}/s" for name in targets]
        rates += [f"{case.elements(name) / 1e6:,.0f} M/s" for name in elements]
        cells = [*rates, *(f"{case.ratio(other):.2f}" for other in others)]
        yield " | ".join(
            [f"{case.ports:5}", f"{case.values:6}", f"{case.lanes:>6}", *(f"{cell:>18}" for cell in cells)]
        )


def ratio_name(other: str) -> str:
    return f"{SUBJECT}/{other}"


def parse() -> argparse.Namespace:
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench.switch_loop", description=__doc__, formatter_class=kept)
    add = parser.add_argument
    add("--target", action="append", choices=TARGETS, help="repeat for several (default: all but unchecked)")
    add("--ports", type=int, action="append", choices=range(1, 65), metavar="N", help="repeat (default: 2 and 8)")
    add("--values", type=int, action="append", choices=range(64, 2049, 64), metavar="N", help="repeat (256 and 2048)")
    add("--lanes", action="append", choices=LANES, help="repeat (default: int32); onebit: values up to 256, no BMv2")
    add("--rounds", type=whole(), default=9, help="turns of each target in each case (default 9)")
    add("--seconds", type=float, default=0.5, help="of each turn (default 0.5)")
    add("--window", type=whole(), default=32, help="blocks in flight of each worker (default 32)")
    add("--json", action="store_true", help="everything, the single turns included, as one JSON object")
    options = parser.parse_args()
    window = layout(1).job.slots // 2
    if options.seconds <= 0 or options.window > window:
        parser.error(f"--seconds is more than 0, --window at most {window}")
    for name in set(missing()) & set(options.target or ()):
        parser.error(f"--target {name} needs simple_switch_grpc on the PATH")
    options.lanes, given = options.lanes or ["int32"], options.target
    votes = "onebit" in options.lanes
    if votes and ("bmv2" in (given or ()) or max(options.values or VALUES[:1]) > VALUES[0]):
        parser.error(f"--lanes onebit goes with up to {VALUES[0]} --values, and not with --target bmv2")
    options.target = options.target or [
        name for name in TARGETS if name not in (*missing(), "unchecked", *["bmv2"] * votes)
    ]
    options.ports, options.values = options.ports or PORTS, options.values or VALUES[: 1 if votes else None]
    return options


def show(progress: str) -> None:
    """One line on a terminal, that the next one replaces."""
    if sys.stderr.isatty():
        print(progress, end="\033[K\r", file=sys.stderr, flush=True)


def main() -> int:
    """Print one table, or one JSON object; 1 when a goal is missed."""
    options = parse()
    with laboratory() as folder:
        cases = [case for ports in options.ports for case in measure(ports, folder, options)]
    show("")
    missed = [text for case in cases for text in case.missed()]
    if options.json:
        print(json.dumps({"cases": [case.as_json() for case in cases], "missed": missed}, indent=2))
    else:
        print(f"contributions of all workers a second, window {options.window}, medians of {options.rounds} rounds:")
        print(*table(cases, options.target), sep="\n")
        print(*(text for case in cases for text in case.lost()), *(f"goal missed: {text}" for text in missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
