"""A real link that becomes slow: its worker gets results from a peer, also when this peer dies, and its gradients enter
sums that do not wait for it."""

import json
import os
from pathlib import Path

import pytest

from tests.run.real_run import RealRun

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

TARGET = ("--target", os.environ.get("KOFN_TARGET", "embedded"))
ITERATIONS = 260

JOB = f"""
[run]
trials = ["fixed:2"]
target = 1.0
max_iterations = {ITERATIONS}
evaluate_every = {ITERATIONS}
trial_deadline_s = 100
[network]
link_mbps = 200
[job]
workers = 4
[policy]
late_gradient = "merge"
age_weight = 1.0
[model]
hidden = [256]
compute_ms = 15
[[straggler]]
workers = [0, 1, 2, 3]
mean_ms = 3
[[link]]
workers = [3]
mbps = 5
at_iteration = 10
[[event]]
at_iteration = 60
kill = "worker-0"
[[event]]
at_iteration = 60
after_s = 1.0
start = "worker-0"
"""


def test_gradients_of_a_slow_link_enter_sums_and_the_death_of_its_peer_loses_none(tmp_path: Path) -> None:
    with RealRun(tmp_path, *TARGET, config=JOB) as run:
        run.wait()
        assert run.leftovers() == []
    (result,) = json.loads((run.out / "summary.json").read_text())["trials"]
    assert result["identity_error"] is result["conservation_error"] is None
    assert result["conservation_unchecked"] in (None, "the aggregated gradients of worker 0 (killed)"), (
        "if it was too late"
    )
    assert (result["iterations"], result["missed_events"]) == (ITERATIONS, [])
    assert result["share_by_worker"][3] > 0.1
    folder = run.out / "fixed-2"
    lines = [json.loads(line) for line in (folder / "worker-3.jsonl").read_text().splitlines()]
    account, totals = lines[-1]["summary"]["account"], lines[-1]["summary"]
    assert account["summed"] > 0.5 * account["entered"] > 50, (
        "the link is full until the controller sees that it is slow"
    )
    others = json.loads((folder / "worker-1.jsonl").read_text().splitlines()[-1])["summary"]
    assert totals["bytes_received"] < 0.8 * others["bytes_received"], "the switch sends it answers to its packets alone"
    links = [json.loads(line)["worker"][3] for line in (folder / "status.jsonl").read_text().splitlines()]
    peers = {int(name) for link in links for name in range(4) if f"results come from worker {name}" in link["link"]}
    assert peers >= {0}
    assert peers & {1, 2}, "it follows another worker after the death of the first"
    assert any(1 < link["link_mbps"] < 15 for link in links)
