"""Real training by a schedule gives the same parameters as without one, in any order, also when a worker is killed."""

import json
import os
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kofn_common.config.schedule import FAMILIES
from tests.run.real_run import RealRun

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

JOB = """
[run]
trials = ["fixed:2"]
target = 1
max_iterations = 30
[job]
id = {id}
workers = 2
slots = 32
window = 16
[model]
workload = "{workload}"
hidden = {hidden}
compute_ms = {compute_ms}
{schedule}
"""

KILLED = """
[[event]]
at_iteration = 12
kill = "worker-1"
[[event]]
at_iteration = 12
after_s = 0.05
start = "worker-1"
"""

SCHEDULES = {
    "none": "",
    **{family: f"[schedule]\nfamily = '{family}'\nthreshold_kb = 3" for family in FAMILIES},
    "auto": "[schedule]\nfamily = 'auto'",
    "enumerate": "[schedule]\nfamily = 'front-first'\nthreshold_kb = 1\nenumerate = true",
    "killed": "[schedule]\nfamily = 'auto'" + KILLED,
}


def iterations(folder: Path, rank: int) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / f"worker-{rank}.jsonl").read_text().splitlines()]
    return [line for line in lines if "summary" not in line]


def test_parameters_equal_those_without_a_schedule(tmp_path: Path) -> None:
    same_parameters(tmp_path, "none", "auto", "killed")


@pytest.mark.long
@pytest.mark.parametrize(("workload", "hidden"), [("digits", "[40, 30]"), ("convolutional", "[3, 5]")])
def test_every_schedule_gives_the_same_parameters(tmp_path: Path, workload: str, hidden: str) -> None:
    same_parameters(tmp_path, *(name for name in SCHEDULES if name != "killed"), workload=workload, hidden=hidden)


def same_parameters(tmp_path: Path, *names: str, workload: str = "digits", hidden: str = "[40, 30]") -> None:
    """Run one job for each name on one switch; a worker of the job "killed" is killed during the run."""
    first, *others = (
        JOB.format(
            id=number,
            schedule=SCHEDULES[name],
            workload=workload,
            hidden=hidden,
            compute_ms=6 if name != "killed" else 200,
        )
        for number, name in enumerate(names, 1)
    )
    with RealRun(tmp_path, config=first, others=others) as run:
        assert run.wait(180) == 1, "the run must fail, because no target is reached"
        assert run.leftovers() == []
    params = set[str]()
    for result in json.loads((run.out / "summary.json").read_text())["jobs"]:
        name, (trial,) = names[result["job"] - 1], result["trials"]
        assert trial["identity_error"] is trial["conservation_error"] is trial["conservation_unchecked"] is None
        assert trial["restarts"] == (name == "killed")
        in_force = set[str | None]()
        for rank in (0, 1):
            lines = iterations(run.out / "fixed-2" / f"job-{result['job']}", rank)
            assert any(line["timeline"] for line in lines) == (name != "none")
            in_force.add(lines[-1]["schedule"])
            # while the killed worker is away k is 1, and it takes the missed results from the other one
            if name != "killed":
                assert {line["iteration"] for line in lines} == {*range(1, 31)}
                params.add(lines[-1]["params"])
        assert len(in_force) == 1, "all workers must use one schedule at a time"
    assert len(params) == 1


DELAYED = """
[run]
trials = ["fixed:2"]
max_iterations = 30
[job]
workers = 2
[model]
workload = "accelerator"
compute_ms = 0
[schedule]
family = "priority"
threshold_kb = 64
[[fault]]
workers = [0]
direction = "receive"
blocks = [8, 9, 10, 11, 12, 13, 14, 15]
delay_ms = 150
"""

LAYER = """
[[layer]]
elements = 2048
forward_ms = 2
error_ms = 2
weight_ms = 2
"""


@pytest.mark.long
def test_delay_of_one_layers_packets_delays_its_forward_pass_alone(tmp_path: Path) -> None:
    """There are four layers of 8 blocks, the last one first; the third layer's means are late."""
    with RealRun(tmp_path, config=DELAYED + 4 * LAYER) as run:
        run.wait(120)
        assert run.leftovers() == []
    lines = iterations(run.out / "fixed-2", 0)[5:]
    waits = {
        layer: median(
            end - begin for line in lines for what, name, begin, end in timeline(line, "wait") if name == layer
        )
        for layer in "1234"
    }
    assert waits["3"] > 0.1, waits
    assert max(waits["1"], waits["2"], waits["4"]) < waits["3"] / 3, waits
    for line in lines:
        begins = {name: begin for _, name, begin, _ in timeline(line, "forward")}
        (late,) = [end for _, name, _, end in timeline(line, "wait") if name == "3"]
        assert begins["1"] < begins["2"] < late <= begins["3"] < begins["4"]


def timeline(line: dict[str, Any], what: str) -> list[list[Any]]:
    return [entry for entry in line["timeline"] if entry[0] == what]
