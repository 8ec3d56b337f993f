"""Goodput under loss, as a share of the loss-free goodput of the same round.  Needs root.

    python bench/goodput.py [--loss 0.01] [--rounds 3] [--target embedded] [--iterations 150]

Four workers, k = n, no computing to speak of: iterations take as long as the network does.  Goodput is what arrives of
use: gradient bytes (4 an element) of all iterations, divided by the time that they took.  Each round runs loss-free and
with each loss (of all packets, each way), one after another; the table has medians over the rounds.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from bench.tables import whole
from kofn.report.summarise import summarise
from kofn.report.table import make_console
from kofn.run.errors import RunError
from kofn.run.plan import make_plan
from kofn.run.runner import execute
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import KofnError
from kofn_common.config.faults import FaultSection
from kofn_common.config.model import ModelSection
from kofn_common.config.network import NetworkSection
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config

LINK_MBPS = 20.0
BASE = Config(
    run=RunSection(name="goodput", trials=("all",), target=1.0),
    network=NetworkSection(link_mbps=LINK_MBPS),
    model=ModelSection(hidden=(256,), batch=1, compute_ms=0.0),
)
PARAMETERS = 64 * 256 + 256 + 256 * 10 + 10
"""Parameters of the model above: digits have 64 pixels and 10 classes."""


def goodput_mbps(loss: float, iterations: int, target: str, console: Console) -> tuple[float, int]:
    """One run: gradient Mbit/s, and retransmissions."""
    config = replace(BASE, run=replace(BASE.run, max_iterations=iterations))
    if loss:
        config = replace(config, fault=(FaultSection(drop=loss),))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "goodput.toml"
        source.write_text(to_toml(config))
        plan = dataclasses.replace(make_plan(source, target=target, out=Path(folder) / "run", quiet=True), check=False)
        results = execute(plan, console)
        (summary,) = summarise(results.jobs[0], plan.shared).trials
    if summary.broken:
        raise RunError("; ".join(summary.broken))
    assert summary.retransmissions is not None
    return summary.iterations * PARAMETERS * 32 / summary.duration_s / 1e6, summary.retransmissions


def main() -> None:
    """Measure and print the table."""
    options = _options()
    console, losses = make_console(stderr=True), [0.0, *options.loss]
    measured: dict[float, list[tuple[float, int]]] = {loss: [] for loss in losses}
    for turn in range(options.rounds):
        for loss in losses:
            measured[loss].append(goodput_mbps(loss, options.iterations, options.target, console))
            rate, again = measured[loss][-1]
            console.print(f"round {turn + 1}, loss {loss:.1%}: {rate:.1f} Mbit/s, {again:,} retransmitted")
    make_console().print(_table(measured, options.target))


def _table(measured: dict[float, list[tuple[float, int]]], target: str) -> Table:
    """Medians; the share is that of each round's own loss-free run."""
    table = Table("loss each way", "goodput", "of loss-free", "of the link", "retransmitted", box=None, title=target)
    for loss, turns in measured.items():
        rate = statistics.median(rate for rate, _ in turns)
        share = statistics.median(rate / free for (rate, _), (free, _) in zip(turns, measured[0.0], strict=True))
        again = statistics.median(again for _, again in turns)
        link = f"{rate / LINK_MBPS:.0%}"
        table.add_row(f"{loss:.1%}", f"{rate:.1f} Mbit/s", f"{share:.2f}", link, f"{again:,.0f}")
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", type=float, nargs="+", default=[0.001, 0.01, 0.1], help="shares of all packets")
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--iterations", type=whole(), default=150)
    parser.add_argument("--target", choices=["embedded", "bmv2"], default="embedded")
    options = parser.parse_args()
    if not all(0 < loss < 1 for loss in options.loss):
        parser.error("--loss is between 0 and 1")
    return options


if __name__ == "__main__":
    try:
        main()
    except KofnError as error:
        sys.exit(f"goodput: {error}")
