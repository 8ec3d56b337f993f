"""The whole system with everything recorded: every block of every iteration equals NumPy's."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kofn_common.wire.packet import MEMBERS_BITS, places_of
from kofn_common.wire.sizes import PARTS, WEIGHT_UNIT
from tests.run.real_run import RealRun
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
trials = ["throughput"]
target = 0.92
record = true
[job]
racks = {racks}
[policy]
late_gradient = "{rule}"
age_weight = 1
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
def test_every_sum_equals_numpys_under_merge(tmp_path: Path, target: str) -> None:
    check_sums(tmp_path, "merge", target)


@pytest.mark.long
def test_every_sum_equals_numpys_under_stash(tmp_path: Path) -> None:
    check_sums(tmp_path, "stash", os.environ.get("KOFN_TARGET", "embedded"))


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_every_sum_equals_numpys_in_a_tree(tmp_path: Path, target: str) -> None:
    check_sums(tmp_path, "stash", target, racks=2)


def check_sums(tmp_path: Path, rule: str, target: str, racks: int = 1) -> None:
    with RealRun(tmp_path, "--target", target, config=CONFIG.format(rule=rule, racks=racks)) as run:
        assert run.wait() == 0, run.text()
    records = [np.load(run.out / "throughput" / f"worker-{rank}-record.npz") for rank in range(WORKERS)]
    reference = records[0]
    iterations = len(reference["iterations"])
    assert iterations > 30, iterations
    assert np.array_equal(reference["iterations"], np.arange(1, iterations + 1))
    for record in records:
        for name in ("iterations", "sums", "scales", "counts", "weights", "members"):
            assert np.array_equal(record[name], reference[name]), f"{name} differ between workers"
    sent = np.stack([record["sent"].astype(np.int64) for record in records])
    members = np.stack([parts_of(reference["members"], place) for place in places_of(WORKERS, racks)])
    expected = (sent * members[..., None].astype(np.int64)).sum(axis=(0, 2))
    inside = members[:, :, 0]
    assert members[:, :, 1:].any() == (rule == "merge"), "only merge sends late gradients as separate parts"
    assert np.array_equal(reference["sums"], expected), "a sum must be that of its members' packets"
    assert np.array_equal(reference["counts"], inside.sum(axis=0)), "a count must be the number of workers in time"
    gradients, contributions = reference["weights"] // WEIGHT_UNIT, members.sum(axis=(0, 2))
    assert not np.any(reference["weights"] % WEIGHT_UNIT), "each gradient must have the weight 1 at any age"
    assert np.all(gradients >= contributions)
    assert np.all(np.cumsum(gradients, axis=0) <= WORKERS * np.arange(1, iterations + 1)[:, None]), (
        "no gradient may be in two sums"
    )
    assert rule == "merge" or np.any(gradients > contributions), "stashed gradients must be sent with the next one"
    assert np.any(reference["sums"])
    assert 0 < np.mean(inside[2]) < 1, "the straggler must be left out of some sums, but not of all"


def parts_of(members: npt.NDArray[np.uint64], place: int) -> npt.NDArray[np.uint64]:
    """Return whether each part of the worker at a place is in each sum, (iterations, parts, blocks)."""
    rack, rank = divmod(place, MEMBERS_BITS)
    found = members[:, :PARTS].copy()
    if rack:  # one word, for part 0
        found[:, 0], found[:, 1:] = members[:, PARTS - 1 + rack], 0
    return found >> np.uint64(rank) & np.uint64(1)
