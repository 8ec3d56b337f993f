"""The ceiling of this machine: the speed of the switch alone, and of hosts and switch on the same cores.

A link with a rate above the ceiling sets no limit: a comparison on such links would measure this machine.
"""

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from kofn.experiments.compare.models import GradientModel
from kofn.experiments.compare.points import NONE, Contender, Point, Setting
from kofn.experiments.conduct import gone_through
from kofn.experiments.matrix import CarryOut, Cell, cells
from kofn.report.iteration_costs import reduce_s
from kofn.run.display import say
from kofn.run.errors import RunError
from kofn.run.plan import RunPlan
from kofn_common.config.errors import ConfigError
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import read_trial

VALUES = 2048
"""Values in the largest packet."""

SECONDS, TURNS = 0.4, 3
"""Seconds of each turn of the switch alone; the median of the turns counts."""

UNLIMITED_MBPS = 100_000.0
"""The highest configurable rate of a link, which no link reaches."""

HEADROOM = 0.8
"""The share of the ceiling that links may have."""

ITERATIONS = 6
TIMEOUT_S = 60.0


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The ceiling for one number of workers."""

    workers: int
    contributions_s: float
    """Contributions per second, of all workers, that the switch alone adds."""
    reduce_mbps: float
    """The rate of a worker's gradient in an all-reduce through the switch, on unlimited links."""

    @property
    def switch_mbps(self) -> float:
        """The rate of a worker's gradient at which the switch alone adds."""
        return self.contributions_s / self.workers * VALUES * 32 / 1e6

    @property
    def mbps(self) -> float:
        return min(self.switch_mbps, self.reduce_mbps)

    @property
    def words(self) -> str:
        return (
            f"{self.workers} workers: the switch alone adds {self.contributions_s:,.0f} contributions/s, "
            f"{self.switch_mbps:,.0f} Mbit/s a worker; with the hosts on the same cores an all-reduce moves "
            f"{self.reduce_mbps:,.0f} Mbit/s a worker"
        )


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """The content of OUT/ceiling.json; `known` has the ceilings by number of workers."""

    target: str
    known: dict[int, Ceiling] = {}

    @classmethod
    def read(cls, folder: Path, target: str) -> "Ceilings":
        """Return the stored ceilings. Raise ConfigError if the stored ceilings are those of another target."""
        try:
            found = msgspec.json.decode((folder / "ceiling.json").read_bytes(), type=cls)
        except (FileNotFoundError, ValueError):
            return cls(target=target)
        if found.target != target:
            raise ConfigError(f"{folder} holds a comparison on {found.target}: choose another --out for {target}")
        return found

    def write(self, folder: Path) -> None:
        (folder / "ceiling.json").write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def measure(
    folder: Path, target: str, workers: Sequence[int], model: GradientModel, carry_out: CarryOut, console: Console
) -> dict[int, Ceiling]:
    """Return ceilings by number of workers; measure unknown ceilings. Raise RunError if a measurement fails."""
    found = Ceilings.read(folder, target)
    for number in workers:
        if number not in found.known:
            contributions_s = switch_alone(target, number)
            reduce_mbps = _all_reduce(folder, target, number, model, carry_out, console)
            ceiling = Ceiling(workers=number, contributions_s=contributions_s, reduce_mbps=reduce_mbps)
            found = msgspec.structs.replace(found, known={**found.known, number: ceiling})
            found.write(folder)
        say(console, found.known[number].words)
    return {number: found.known[number] for number in workers}


def switch_alone(target: str, workers: int) -> float:
    """Return the contributions per second that the switch adds. Raise RunError if the measurement fails."""
    argv = [sys.executable, "-m", "kofn.experiments.load", "--target", target, "--workers", str(workers)]
    options = ["--values", str(VALUES), "--seconds", str(SECONDS), "--turns", str(TURNS)]
    try:
        ended = subprocess.run([*argv, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"the switch's ceiling was not known after {TIMEOUT_S:.0f} s") from None
    if ended.returncode:
        raise RunError(f"the switch's ceiling could not be measured: {ended.stderr.strip()[-400:]}")
    return float(statistics.median(turn["rate"] for turn in json.loads(ended.stdout)["turns"]))


def ceiling_cell(folder: Path, target: str, workers: int, model: GradientModel) -> tuple[Point, Cell]:
    """Return the point and cell of an all-reduce through the switch, on links that set no limit."""
    point = Point(
        setting=Setting(model=model, straggler=NONE, workers=workers, mbps=UNLIMITED_MBPS),
        contender=Contender(collective="full", codec="int32"),
        k=workers,
    )
    scenario = point.scenario(target=target, iterations=ITERATIONS, settings=["compress.pace_mbps=0"])
    (cell,) = cells([replace(scenario, name=f"ceiling-{workers}w")], 1, folder)
    return point, cell


def _all_reduce(
    folder: Path, target: str, workers: int, model: GradientModel, carry_out: CarryOut, console: Console
) -> float:
    """Carry out all-reduces; return the rate of a worker's gradient in Mbit/s."""
    point, cell = ceiling_cell(folder, target, workers, model)

    def unchecked(plan: RunPlan, console: Console) -> RunFolder:
        """Carry out without checks, because no link reaches the configured rate."""
        return carry_out(replace(plan, check=False), console)

    (result,) = gone_through([cell], folder, unchecked, console)
    if not result.trials:
        raise RunError(f"the ceiling of {workers} workers could not be measured: {result.error}")
    (trial,) = result.cell.job().trials
    return 8e-6 * point.gradient_bytes / reduce_s(read_trial(trial, workers))


def carried(mbps: Sequence[float], ceilings: Mapping[int, Ceiling]) -> tuple[dict[int, list[float]], list[str]]:
    """Return the rates that the machine carries, by number of workers, and notes about the rates that it does not
    carry.

    All rates above the ceiling are replaced by the highest round number below the ceiling.
    """
    rates: dict[int, list[float]] = {}
    notes: list[str] = []
    for workers, ceiling in ceilings.items():
        bound = HEADROOM * ceiling.mbps
        above = [rate for rate in mbps if rate > bound]
        instead = [round_below(bound)] if above else []
        rates[workers] = sorted({*(rate for rate in mbps if rate <= bound), *instead})
        if above:
            notes.append(
                f"{workers} workers: links of {' and '.join(f'{rate:g}' for rate in above)} Mbit/s are above what this "
                f"machine carries ({HEADROOM:.0%} of {ceiling.mbps:,.0f} Mbit/s): {instead[0]:g} Mbit/s instead"
            )
    return rates, notes


def round_below(number: float) -> float:
    """Return the highest number that has only one digit besides zeros and is not above `number`.

    >>> round_below(847.0), round_below(95.0), round_below(0.25)
    (800.0, 90.0, 0.2)
    """
    unit = 10.0 ** math.floor(math.log10(number))
    return math.floor(number / unit + 1e-9) * unit
