"""The whole system once more, with everything recorded: every block of every iteration against NumPy."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_run import RealRun

from host.wire import WEIGHT_UNIT
from tests.targets import TARGETS

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

WORKERS = 4

CONFIG = """
[run]
name = "recorded"
passes = ["round"]
target_accuracy = 0.92
record = true
[model]
learning_rate = 0.03
compute_ms = 4
[[straggler]]
workers = [2]
mean_ms = 20
[[straggler]]
workers = [0, 1, 3]
mean_ms = 1
[[event]]
at_iteration = 25
objective = "all"  # what was stashed until then is in a sum
"""


@pytest.mark.parametrize("target", TARGETS)
def test_every_sum_is_numpys(tmp_path: Path, target: str) -> None:
    with RealRun(tmp_path, "--target", target, config=CONFIG) as run:
        assert run.wait() == 0, run.text()
    records = [np.load(run.out / "round" / f"worker-{rank}-record.npz") for rank in range(WORKERS)]
    reference = records[0]
    iterations = len(reference["iterations"])
    assert iterations > 30, iterations
    assert np.array_equal(reference["iterations"], np.arange(1, iterations + 1))
    for record in records:
        for name in ("iterations", "sums", "scales", "counts", "weights", "members"):
            assert np.array_equal(record[name], reference[name]), f"{name} differ between workers"
    sent = np.stack([record["sent"].astype(np.int64) for record in records])
    members = np.stack([reference["members"] >> np.uint64(rank) & np.uint64(1) for rank in range(WORKERS)])
    expected = (sent * members[..., None].astype(np.int64)).sum(axis=(0, 2))
    inside = members[:, :, 0]
    assert not members[:, :, 1:].any(), "one contribution of each"
    assert np.array_equal(reference["sums"], expected), "a sum is not what its members sent"
    assert np.array_equal(reference["counts"], inside.sum(axis=0)), "a count is not the number of members"
    gradients = brought(records, inside).sum(axis=0)
    assert np.array_equal(reference["weights"], WEIGHT_UNIT * gradients), "not all that was stashed"
    assert np.any(gradients > reference["counts"])
    assert np.any(reference["sums"])
    assert 0 < np.mean(inside[2]) < np.mean(inside[0]), "the straggler is sometimes left out, and sometimes in time"


def brought(records: list[Any], inside: np.ndarray) -> np.ndarray:
    """How many gradients each worker had for each block of each iteration that it was in: all since the last such."""
    number, pending = np.zeros(inside.shape, np.int64), np.zeros(inside[:, 0].shape, np.int64)
    for iteration in range(inside.shape[1]):
        pending += np.array([record["computed"][iteration] for record in records])[:, None]
        number[:, iteration] = pending * inside[:, iteration].astype(np.int64)
        pending -= number[:, iteration]
    return number
