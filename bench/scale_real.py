"""The simulation by iterations beside real runs, with the same blocking. As root; the runs have a separate network.

    python -m bench.scale_real                     4, 8, 16 and 64 workers: about eight minutes
    python -m bench.scale_real --workers 4

The overhead of an iteration is calibrated: it is the difference of the mean iteration times of `all`, and is given as
scale.overhead_ms. The other choices are then compared: figures are simulated over real times. More workers compute for
longer, so that the machine's cores suffice. The last lines are verdicts.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import kofn
from bench.tables import Row, make_parser, say, show, whole
from kofn.sim.scale.simulation import simulate_scale
from kofn.sim.times import QUANTILES
from kofn_common.config.schema import Config
from kofn_controller.estimate.measurements import FloatArray

SIZES = {4: (40, 150), 8: (80, 100), 16: (150, 70), 64: (800, 35)}
"""Milliseconds of computation, and iterations, by number of workers."""

WITHIN = 0.05

CONFIG = """
[run]
seed = {seed}
trials = ["stash:{k}", "abort:{k}", "all"]
target = 1.0
max_iterations = {iterations}
[network]
link_mbps = 100
[job]
workers = {workers}
[model]
hidden = [16]
compute_ms = {compute_ms}
[[straggler]]
workers = "all"
mean_ms = {mean_ms}
[[straggler]]
workers = "0-:4"
mean_ms = {slow_ms}
"""

IN_A_NETWORK = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]

FIRST = 5
"""Iterations that are left out: processes start, and caches are cold."""


def lengths_s(folder: Path) -> dict[str, FloatArray]:
    """Return the iteration times of each trial of a run: between the ends of successive iterations at their first
    worker.
    """
    metrics = kofn.read(folder).metrics
    ends = metrics.groupby(["trial", "iteration"]).time.min()
    return {str(trial): np.diff(ends[trial].to_numpy())[FIRST:] for trial in ends.index.unique("trial")}


def rows(workers: int, seed: int, folder: Path) -> list[Row]:
    compute_ms, iterations = SIZES[workers]
    text = CONFIG.format(
        seed=seed,
        k=workers * 3 // 4,
        iterations=iterations,
        workers=workers,
        compute_ms=compute_ms,
        mean_ms=compute_ms / 2,
        slow_ms=2 * compute_ms,
    )
    path, out = folder / f"{workers}.toml", folder / str(workers)
    path.write_text(text)
    command = [sys.executable, "-m", "kofn.cli.start", "run", str(path), "--out", str(out), "--quiet"]
    environment = os.environ | {"KOFN_STATE_DIR": str(folder / "state")}
    done = subprocess.run([*IN_A_NETWORK, *command], env=environment, capture_output=True, text=True, check=False)
    if not (out / "summary.json").exists():
        sys.exit(f"bench.scale_real: {done.stderr}")
    real = lengths_s(out)

    def simulated(trial: str, overhead_ms: float) -> Row:
        config = Config.parse(text, {"scale": {"overhead_ms": overhead_ms}})
        return simulate_scale(config, trial, lambda iteration, virtual_s: None)[0].to_dict()

    overhead_ms = 1e3 * float(real["all"].mean() - simulated("all", 0.0)["mean_iteration_s"])
    found = []
    for trial, times_s in real.items():
        fast = simulated(trial, max(overhead_ms, 0.0))
        row: Row = {
            "workers": workers,
            "trial": trial,
            "real_ms": 1e3 * float(times_s.mean()),
            "overhead_ms": overhead_ms,
        }
        row["mean"] = fast["mean_iteration_s"] / float(times_s.mean())
        row |= {f"{level:.0%}": fast[name] / float(np.quantile(times_s, level)) for name, level in QUANTILES.items()}
        found.append(row)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=whole(), choices=SIZES, nargs="+", default=[*SIZES])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        for workers in options.workers:
            say(f"{workers} workers")
            found += rows(workers, options.seed, Path(name))
    show({"--scale / kofn run": found}, as_json=options.json)
    if options.json:
        return
    for heading in ("mean", *(f"{level:.0%}" for level in QUANTILES.values())):
        off = [abs(row[heading] - 1) for row in found if row["trial"] != "all"]
        far = sum(each > WITHIN for each in off)
        print(f"{'NO ' if far else 'yes'} {heading} within 5 %: worst {max(off):.1%}, {far} of {len(off)} beyond")


if __name__ == "__main__":
    main()
