"""An elastic training with one slow worker beside one without it, in one run: times to the same loss.

    kofn run bench/torch_elastic.toml bench/torch_three.toml && python -m bench.torch_elastic runs/latest

A loss counts as reached when the mean over the last sixty gradients is below it.
"""

import sys

import pandas as pd

import kofn

LOSSES = (0.5, 0.3, 0.2)


def reached_s(metrics: pd.DataFrame, loss: float) -> float:
    """Seconds since the first worker had its parameters; NaN where it was not reached."""
    known = metrics.dropna(subset="loss").sort_values(["iteration", "worker"])
    below = known[known.loss.rolling(60).mean() < loss]
    return float(below.time.iloc[0] - metrics.started.min()) if len(below) else float("nan")


def main(folder: str) -> None:
    for job, metrics in kofn.read(folder).metrics.groupby("job"):
        workers, alike = metrics.worker.nunique(), metrics.groupby("iteration").params.nunique().max() == 1
        times = ", ".join(f"{loss} after {reached_s(metrics, loss):.1f} s" for loss in LOSSES)
        print(f"job {job}, {workers} workers: loss {times}; replicas {'equal' if alike else 'DIFFERENT'} to the bit")


if __name__ == "__main__":
    main(sys.argv[1])
