"""One sweep of simulations on this machine and on Dask clusters, and whether the tables are the same to the last digit.

    python -m bench.scale_sweep                 1,000 cells, four times: some minutes
    python -m bench.scale_sweep --seeds 1       50 cells

Without Dask; interrupted and continued on this machine; on a cluster of two worker processes, of which one is killed in
the middle; and on dask-jobqueue's SLURMCluster with stand-ins for sbatch and scancel, which start the job script and
end it. Exit code 1 where a table differs.
"""

import contextlib
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import dask_jobqueue  # noqa: F401  # its defaults are in Dask's configuration

from bench.tables import Row, make_parser, say, show, whole
from kofn.experiments.artefact import prepare
from kofn.experiments.engine import TaskEngine
from kofn.experiments.experiment_file import ExperimentFile
from kofn.experiments.modes import carry_out
from kofn.experiments.reader import Experiment
from kofn.report.table import make_console

SWEEP = Path(__file__).with_name("scale_sweep.toml")
"""50 cells for each seed."""

SBATCH = """#!/bin/sh
script=$(mktemp -p "$(dirname "$0")")  # the submitted one is removed at once
cp "$1" "$script"
setsid sh "$script" >"$script.log" 2>&1 &
echo "Submitted batch job $!"
"""

SCANCEL = """#!/bin/sh
kill -- "-$1"
"""

JOBQUEUE = {"cores": 1, "processes": 1, "memory": "2GiB"}
"""Dask's own configuration of the cluster; a user has it in ~/.config/dask."""


def done(seeds: int, folder: Path, engine: TaskEngine, ended: Callable[[int, int], None]) -> Row:
    """Carry out the unfinished cells, and describe the table; `ended` gets the numbers of ended cells and of all
    cells."""
    begin = time.perf_counter()
    file = prepare(ExperimentFile.load(SWEEP, seeds=seeds), folder)
    cells, left = Experiment(folder).cells, Experiment(folder).left
    for number, _ in enumerate(carry_out(file, folder, left, make_console(quiet=True), engine), 1):
        ended(len(cells) - len(left) + number, len(cells))
    found = Experiment(folder)
    return {
        "rows": len(found.summary),
        "failed": len(found.left),
        "seconds": time.perf_counter() - begin,
        "sha256": hashlib.sha256(found.summary.to_csv(index=False).encode()).hexdigest()[:16],
    }


@contextlib.contextmanager
def two_workers(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the address of a scheduler with two worker processes, and a function that kills one of them."""
    dask = [sys.executable, "-m", "dask"]
    address = folder / "scheduler.json"
    with contextlib.ExitStack() as open_:

        def start(*words: str) -> "subprocess.Popen[bytes]":
            process = subprocess.Popen([*dask, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            open_.callback(process.wait)
            open_.callback(process.kill)
            return process

        start("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(address))
        while not address.exists():
            time.sleep(0.05)
        one, _ = (
            start("worker", "--scheduler-file", str(address), "--nthreads", "1", "--no-nanny", "--no-dashboard")
            for _ in range(2)
        )
        yield json.loads(address.read_text())["address"], lambda: one.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def configured(folder: Path) -> Iterator[None]:
    """Give Dask its configuration, and the shell stand-ins for Slurm's commands."""
    for name, text in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    try:
        with dask.config.set({"jobqueue.slurm": dask.config.get("jobqueue.slurm") | JOBQUEUE}):
            yield
    finally:
        os.environ["PATH"] = before


class InterruptionError(Exception):
    """The sweep is stopped on purpose."""


def rows(seeds: int, folder: Path) -> list[Row]:
    two = TaskEngine(processes=2)

    def nothing(number: int, of: int) -> None:
        """Do nothing."""

    def stop(number: int, of: int) -> None:
        if number == of // 2:
            raise InterruptionError

    say(f"{seeds} seeds without Dask")
    found = [{"where": "two processes"} | done(seeds, folder / "plain", two, nothing)]
    say("interrupted in the middle")
    with contextlib.suppress(InterruptionError):
        done(seeds, folder / "again", two, stop)
    found.append({"where": "the same, interrupted and continued"} | done(seeds, folder / "again", two, nothing))
    say("Dask, two worker processes, one of which is killed")
    with two_workers(folder) as (address, kill):

        def half(number: int, of: int) -> None:
            if number == of // 2:
                kill()

        engine = TaskEngine(cluster=address)
        found.append({"where": "Dask, one of two workers killed"} | done(seeds, folder / "dask", engine, half))
    say("dask-jobqueue, SLURMCluster")
    engine = TaskEngine(processes=2, cluster="dask_jobqueue:SLURMCluster")
    found.append({"where": "dask-jobqueue's SLURMCluster"} | done(seeds, folder / "slurm", engine, nothing))
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=whole(), default=20, help="50 cells each (default 20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, configured(Path(name)):
        found = rows(options.seeds, Path(name))
    show({"one sweep": found}, as_json=options.json)
    if len({row["sha256"] for row in found}) > 1 or any(row["failed"] for row in found):
        print("NO the tables differ")
        sys.exit(1)


if __name__ == "__main__":
    main()
