"""Full load and table updates at the same time, for long.  Needs root and cc.

    python -m bench.soak [--seconds 3600] [--updates 100] [--ports 2] [--values 256] [--json]

The workers of kofn/experiments/load/switch_loop.c check every sum, its checksum and its addresses; meanwhile a
controller changes k, the workers' addresses and an entry that comes and goes (bench/updates.py).  Before that, short
turns with and without updates show what these cost.  The exit code is 1 when a sum is wrong, a contribution has no
result, updates are late, the tables differ from the last writes, or the switch's memory grows.
"""

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.updates import Updates, connected
from kofn.experiments.load.targets import LoadTarget, Turn, laboratory, read_turn, running

GROWTH_MAX_MB = 2.0
RATE_MIN = 0.95
"""Least share of the wanted updates."""
SAMPLES = 400
"""Samples of the switch's memory; the first tenth is the warm-up."""
ROUNDS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """The result; `cost` is the share of contributions that updates cost."""

    seconds: float
    turn: Turn
    updates: int
    updates_wanted: float
    update_ms_median: float
    update_ms_p99: float
    growth_mb: float
    memory_mb: float
    cost: float
    differences: Sequence[str]

    def faults(self) -> Iterator[str]:
        """Sentences, none if all is as it should be."""
        if self.turn.wrong or not self.turn.results:
            yield f"{self.turn.wrong} of {self.turn.results} results are wrong"
        if self.turn.lost:
            yield f"{self.turn.lost} contributions have no result"
        if self.updates < RATE_MIN * self.updates_wanted:
            yield f"{self.updates} updates of {self.updates_wanted:.0f}"
        if self.growth_mb > GROWTH_MAX_MB:
            yield f"the switch's memory must grow by at most {GROWTH_MAX_MB:g} MB, it grew by {self.growth_mb:.1f} MB"
        yield from self.differences


async def soak(target: LoadTarget, options: argparse.Namespace) -> SoakResult:
    """All of it on a running switch."""
    async with connected(target) as switch:
        updates = Updates(switch=switch, workers=options.ports)
        cost = await price(target, updates, options)
        made = updates.made
        updates.took_ms.clear()
        begin, memory = time.monotonic(), list[float]()
        watching = asyncio.create_task(watch(target, memory, options.seconds / SAMPLES))
        stop = asyncio.Event()
        writing = asyncio.create_task(updates.run(options.updates, stop))
        turn = await load(target, options)
        seconds = time.monotonic() - begin
        stop.set()
        watching.cancel()
        await writing
        took = sorted(updates.took_ms)
        steady = memory[len(memory) // 10 :]
        quarter = max(1, len(steady) // 4)
        return SoakResult(
            seconds=seconds,
            turn=turn,
            updates=updates.made - made,
            updates_wanted=seconds * options.updates,
            update_ms_median=statistics.median(took),
            update_ms_p99=took[int(0.99 * len(took))],
            growth_mb=statistics.median(steady[-quarter:]) - statistics.median(steady[:quarter]),
            memory_mb=steady[-1],
            cost=cost,
            differences=await updates.differences(),
        )


async def load(target: LoadTarget, options: argparse.Namespace) -> Turn:
    """The workers, checking, for all the time."""
    command = target.command(seconds=options.seconds, size=4 * options.values, window=options.window, check=True)
    workers = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await workers.communicate()
    return read_turn(out.decode())


async def price(target: LoadTarget, updates: Updates, options: argparse.Namespace) -> float:
    """The share of contributions that updates cost: median over pairs of turns."""
    seconds = min(0.5, options.seconds / 20)
    shares = []
    for _ in range(ROUNDS):
        rates = []
        for rate in (0.0, options.updates):
            stop = asyncio.Event()
            writing = asyncio.create_task(updates.run(rate, stop)) if rate else None
            turn = asyncio.to_thread(target.turn, seconds=seconds, size=4 * options.values, window=options.window)
            rates.append((await turn).rate)
            stop.set()
            if writing:
                await writing
        shares.append(1 - rates[1] / rates[0])
    return statistics.median(shares)


async def watch(target: LoadTarget, memory: list[float], every_s: float) -> None:
    """The switch's resident memory in MB, again and again."""
    while True:
        lines = Path(f"/proc/{target.pid}/status").read_text().splitlines()
        memory.append(next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024)
        if sys.stderr.isatty():
            print(f"{memory[-1]:.1f} MB", end="\033[K\r", file=sys.stderr, flush=True)
        await asyncio.sleep(every_s)


def parse() -> argparse.Namespace:
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__, formatter_class=kept)
    add = parser.add_argument
    add("--seconds", type=float, default=3600, help="of the load (default 3600)")
    add("--updates", type=float, default=100, help="table updates a second (default 100)")
    add("--ports", type=int, default=2, choices=range(2, 65), metavar="N", help="workers (default 2)")
    add("--values", type=int, default=256, choices=range(64, 2049, 64), metavar="N", help="in a packet (default 256)")
    add("--window", type=int, default=32, choices=range(1, 513), metavar="N", help="blocks in flight (default 32)")
    add("--json", action="store_true", help="the result as a JSON object")
    options = parser.parse_args()
    if options.seconds <= 0 or options.updates <= 0:
        parser.error("--seconds and --updates are more than 0")
    return options


def main() -> int:
    """Print the result; 1 if anything is wrong."""
    options = parse()
    with laboratory() as folder, running("embedded", folder, options.ports) as target:
        result = asyncio.run(soak(target, options))
    faults = list(result.faults())
    if options.json:
        print(json.dumps(dataclasses.asdict(result) | {"faults": faults}, indent=2))
    else:
        print(*describe(result), *(f"fault: {fault}" for fault in faults), sep="\n")
    return 1 if faults else 0


def describe(result: SoakResult) -> Iterator[str]:
    """The lines of a result."""
    turn = result.turn
    yield f"{turn.results:,} results in {result.seconds:,.0f} s, {turn.rate:,.0f} a second"
    yield f"{turn.wrong} of them wrong, {turn.lost} contributions without one"
    median, p99 = result.update_ms_median, result.update_ms_p99
    yield f"{result.updates:,} table updates; one took {median:.1f} ms (median), {p99:.1f} ms (99 of 100)"
    yield f"they cost {result.cost:.1%} of the contributions"
    yield f"memory {result.memory_mb:.1f} MB, grown by {result.growth_mb:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
