"""Runs that are killed as a whole at random moments, and resumed.

KOFN_CRASHES: crashes of each rule (1); KOFN_SEED: the moments' seed; KOFN_TARGET=bmv2: on simple_switch_grpc.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kofn_common.config.late_rules import RULES
from tests.run.real_run import RealRun

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

TARGET = ("--target", os.environ.get("KOFN_TARGET", "embedded"))
CRASHES = int(os.environ.get("KOFN_CRASHES", "1"))
SEED = int(os.environ.get("KOFN_SEED", "1"))

ITERATIONS = 120
EVERY = 10

TEMPLATE = f"""
[run]
trials = ["{{objective}}"]
target = 1.0
max_iterations = {{iterations}}
checkpoint_every = {EVERY}
[job]
workers = 3
[model]
compute_ms = 4
[[straggler]]
workers = [1]
mean_ms = 10
{{more}}
"""

RUNS = [
    pytest.param(run, marks=() if run == "batch-sync:2" else pytest.mark.long)
    for run in ("all", *(f"{rule}:2" for rule in RULES))
]


def text(objective: str, *, more: str = "", iterations: int = ITERATIONS) -> str:
    return TEMPLATE.format(objective=objective, more=more, iterations=iterations)


def lines(run: RealRun, objective: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in (run.out / objective.replace(":", "-")).glob("worker-*.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield path, json.loads(line)


def parameters(run: RealRun, objective: str) -> dict[tuple[str, int], str]:
    """Return the digest of each worker's parameters after each iteration."""
    return {(path.name, line["iteration"]): line["params"] for path, line in lines(run, objective) if "params" in line}


def events(run: RealRun, objective: str) -> list[dict[str, Any]]:
    path = run.out / objective.replace(":", "-") / "events.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def crash(folder: Path, objective: str, config: str, moment: int, *more: str, resume: bool = False) -> None:
    """Train until some worker has finished iteration `moment`, then kill everything."""
    with RealRun(folder, *TARGET[: 0 if resume else 2], *more, "--quiet", config=config, resume=resume) as run:
        run.until(
            lambda: max((line.get("iteration", 0) for _, line in lines(run, objective)), default=0) >= moment,
            f"iteration {moment}",
        )
        run.kill_all()


def finish(folder: Path, objective: str, config: str, *more: str) -> RealRun:
    """Resume to the end; check that replicas are identical and gradients conserved."""
    with RealRun(folder, *more, "--quiet", config=config, resume=True) as run:
        run.wait()
        summary = json.loads((run.out / "summary.json").read_text())
        (trial,) = summary["trials"]
        iterations = trial["iterations"]
        assert f"max_iterations = {iterations}\n" in config, run.text()
        assert trial["identity_error"] is None, trial["identity_error"]
        assert trial["conservation_error"] is None and not trial["conservation_unchecked"], run.text()
        assert sorted({line["iteration"] for _, line in lines(run, objective) if "params" in line}) == list(
            range(1, iterations + 1)
        )
        assert not run.leftovers()
    return run


@pytest.mark.parametrize("objective", RUNS)
def test_killed_run_resumes_conserved_and_identical(tmp_path: Path, objective: str) -> None:
    config, moments = text(objective), random.Random(f"{SEED} {objective}")
    for number in range(CRASHES):
        folder = tmp_path / str(number)
        folder.mkdir()
        moment = moments.randint(1, ITERATIONS - 1)
        crash(folder, objective, config, moment)
        run = finish(folder, objective, config)
        assert [event["action"] for event in events(run, objective)] == ["resume"]
        shutil.rmtree(folder)


@pytest.mark.parametrize("moments", [(75,), pytest.param((35, 75), marks=pytest.mark.long)])
def test_all_workers_resume_to_the_bits_of_an_uninterrupted_run(tmp_path: Path, moments: tuple[int, ...]) -> None:
    config = text("all")
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    with RealRun(tmp_path / "whole", *TARGET, "--quiet", config=config) as whole:
        whole.wait()
    for number, moment in enumerate(moments):
        crash(tmp_path / "cut", "all", config, moment, resume=number > 0)
    cut = finish(tmp_path / "cut", "all", config)
    assert parameters(cut, "all") == parameters(whole, "all")


def test_workers_that_are_gone_leave_their_gradients_to_the_others(tmp_path: Path) -> None:
    config = text("stash:2")
    crash(tmp_path, "stash:2", config, 45)
    (gone,) = tmp_path.glob("**/stash-2/worker-2.jsonl")
    before = gone.read_bytes()
    finish(tmp_path, "stash:2", config, "--set", "job.workers=2")
    assert gone.read_bytes() and before.startswith(gone.read_bytes()), "a worker that is gone must compute nothing"


@pytest.mark.long
def test_event_that_had_happened_is_not_repeated(tmp_path: Path) -> None:
    more = "[[event]]\nat_iteration = 12\nkill = 'worker-2'\n[[event]]\nat_iteration = 100\nstart = 'worker-2'"
    config = text("stash:2", more=more, iterations=500)
    crash(tmp_path, "stash:2", config, 60)
    run = finish(tmp_path, "stash:2", config)
    happened = [(event["action"], event["name"].partition(" ")[0]) for event in events(run, "stash:2")]
    assert [each for each in happened if each[0] != "resume"] == [("kill", "worker-2"), ("start", "worker-2")]
    (resumed,) = [event for event in events(run, "stash:2") if event["action"] == "resume"]
    assert "pending gradients of worker 2 lost" in resumed["name"]
