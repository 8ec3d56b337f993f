"""Time and memory of `kofn simulate --scale`, as a whole process: 1,000 iterations of 100 to 100,000 workers.

    python -m bench.scale_speed                    all sizes, k fixed and chosen: about two minutes
    python -m bench.scale_speed --workers 100000

`throughput` chooses k by the control loop of a run. Exit code 1 where 100,000 workers take 30 s or 2 GiB.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.tables import Row, make_parser, say, show, whole

ITERATIONS, SECONDS_MOST, GIB_MOST = 1000, 30.0, 2.0

WORLD = """
[model]
compute_ms = 40
[[straggler]]
workers = "all"
mean_ms = 20
event_ms = 1
[[straggler]]
workers = "0-:10"
mean_ms = 80
event_ms = 1
"""


def row(workers: int, objective: str, folder: Path) -> Row:
    (folder / "world.toml").write_text(WORLD)
    settings = (f"job.workers={workers}", f"run.max_iterations={ITERATIONS}")
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "kofn.cli.start", "simulate", str(folder / "world.toml"), "--scale", "--quiet"]
    begin = time.perf_counter()
    process = subprocess.Popen([*command, "--trial", objective, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return {
        "workers": workers,
        "objective": objective,
        "seconds": seconds,
        "cpu_s": used.ru_utime + used.ru_stime,
        "MiB": used.ru_maxrss / 1024,
        "us_a_worker_and_iteration": 1e6 * (used.ru_utime + used.ru_stime) / workers / ITERATIONS,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=whole(), nargs="+", default=[100, 1000, 10_000, 100_000])
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for workers in options.workers:
            for objective in (f"fixed:{workers * 9 // 10}", "throughput"):
                say(f"{workers:,} workers, {objective}")
                rows.append(row(workers, objective, Path(name)))
    show({f"{ITERATIONS} iterations": rows}, as_json=options.json)
    if any(each["seconds"] >= SECONDS_MOST or each["MiB"] >= 1024 * GIB_MOST for each in rows):
        print(f"NO not all in {SECONDS_MOST:g} s and {GIB_MOST:g} GiB")
        sys.exit(1)


if __name__ == "__main__":
    main()
