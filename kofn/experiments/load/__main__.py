"""Contributions a second that a switch adds, as one JSON object. Needs root and cc.

    python -m kofn.experiments.load --target embedded --workers 4 --values 2048 --seconds 0.5 --turns 3

A worker in C behind each port keeps a window of blocks in flight. Switch and workers run in a network namespace that
ends with the process.
"""

import argparse
from dataclasses import asdict

from kofn.experiments.load.targets import COMMANDS, laboratory, running
from kofn_common.json_text import json_text

WINDOW = 32
"""The number of blocks that a worker keeps in flight."""


def main() -> None:
    options = _options()
    with laboratory() as folder, running(options.target, folder, options.workers) as target:
        size = 4 * options.values
        turns = [target.turn(seconds=options.seconds, size=size, window=WINDOW) for _ in range(options.turns)]
    print(json_text({"turns": [asdict(turn) for turn in turns]}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="kofn.experiments.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=COMMANDS, default="embedded")
    parser.add_argument("--workers", type=int, choices=range(1, 65), metavar="N", default=4)
    parser.add_argument("--values", type=int, choices=range(64, 2049, 64), metavar="N", default=2048)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    if options.seconds <= 0 or options.turns < 1:
        parser.error("--seconds is more than 0, --turns at least 1")
    return options


if __name__ == "__main__":
    main()
