"""Late gradients under each rule: one job a rule, all on one switch; the slow worker is killed and rejoins."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run.real_run import RealRun

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

TARGET = ("--target", os.environ.get("KOFN_TARGET", "embedded"))

RULES = ("merge", "async", "batch-sync", "drop")

JOB = """
[run]
trials = ["fixed:1"]
target = 0.9
max_iterations = 3000
trial_deadline_s = 60
[job]
id = {id}
workers = 2
[policy]
late_gradient = "{rule}"
age_weight = 1.0
[model]
learning_rate = 0.004
compute_ms = 40
[[straggler]]
workers = [0]
mean_ms = 5
[[straggler]]
workers = [1]
mean_ms = 20
[[event]]
at_iteration = 20
kill = "worker-1"
[[event]]
at_iteration = 20
after_s = 0.1
start = "worker-1"
"""


def slow_workers(folder: Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], dict[str, Any]]:
    """Return the slow worker's lines and sums, and the controller's final view of it."""
    lines = [json.loads(line) for line in (folder / "worker-1.jsonl").read_text().splitlines()]
    status = json.loads((folder / "status.jsonl").read_text().splitlines()[-1])
    return lines[:-1], dict(np.load(folder / "worker-1.npz")), status["worker"][1]


@pytest.mark.slow
def test_every_rule_conserves_gradients_and_starves_no_worker(tmp_path: Path) -> None:
    first, *others = (JOB.format(id=number, rule=rule) for number, rule in enumerate(RULES, 1))
    with RealRun(tmp_path, *TARGET, config=first, others=others) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    for job in json.loads((run.out / "summary.json").read_text())["jobs"]:
        rule, (result,) = RULES[job["job"] - 1], job["trials"]
        assert result["identity_error"] is result["conservation_error"] is result["conservation_unchecked"] is None
        assert (result["restarts"], result["missed_events"]) == (1, [])
        assert result["late_by_worker"][1] > 0
        assert (result["discarded_by_worker"][1] > 0) == (rule == "drop")
        lines, sums, status = slow_workers(run.out / "fixed-1" / f"job-{job['job']}")
        assert sums["discarded"].any() == (rule == "drop")
        computed = [line for line in lines if line["computed"]]
        if rule != "drop":
            assert result["share_by_worker"][1] > 0.05
            assert status["share"] > 0.05
            assert max(result["starved_by_worker"]) < 8
            assert max(line["age"] for line in computed) > 0 or rule == "batch-sync"
        assert all(line["gradient_norm2"] > 0 for line in computed)
        assert all(line["aggregate_norm2"] > 0 for line in lines)
