"""The time of a packet in the embedded switch, by stage.  Needs root and cc.

    python -m bench.packet_time [--ports 2] [--values 256] [--rounds 9]

Contributions in a closed loop as in bench.switch_loop; the switch and the reflector measure themselves, waiting left
out.  The checksum's time is the difference to the same program without its checksum over header and values.
A result that goes to all workers is sent once for each: so a packet received is one sent.
"""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.tables import whole
from kofn.experiments.load.targets import laboratory, running

NAMES = ("embedded", "unchecked", "reflector")
WINDOW = 32
TURN_S = 0.3


def times(folder: Path, ports: int, values: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return each target's microseconds a packet by stage; the targets take turns."""
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(running(name, folder, ports)) for name in NAMES]
        for target in targets * rounds:
            target.turn(seconds=TURN_S, size=4 * values, window=WINDOW)
        return {target.name: target.times() for target in targets}


def row(folder: Path, ports: int, values: int, rounds: int) -> Iterator[float]:
    found = times(folder, ports, values, rounds)
    embedded, program = found["embedded"], found["unchecked"]["program"]
    yield from (embedded["receiving"], program, embedded["program"] - program, embedded["sending"])
    yield sum(embedded.values())
    yield from (found["reflector"]["receiving"], found["reflector"]["sending"], sum(found["reflector"].values()))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.packet_time", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ports", type=whole(), action="append", help="repeat (default: 2 and 8)")
    parser.add_argument(
        "--values", type=whole(), action="append", help="int32 in a packet; repeat (default: 256 and 2048)"
    )
    parser.add_argument("--rounds", type=whole(), default=9, help="turns of each (default 9)")
    told = parser.parse_args()
    print("microseconds a packet  |                     embedded                      |          reflector")
    columns = ("receive", "program", "checksum", "send", "all", "receive", "send", "all")
    print(f"ports | values         | {' '.join(f'{name:>9}' for name in columns)}")
    with laboratory() as folder:
        for ports in told.ports or (2, 8):
            for values in told.values or (256, 2048):
                cells = " ".join(f"{us:9.2f}" for us in row(folder, ports, values, told.rounds))
                print(f"{ports:5} | {values:6}         | {cells}", flush=True)


if __name__ == "__main__":
    main()
