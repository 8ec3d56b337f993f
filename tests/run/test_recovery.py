"""Real runs in which a process is killed, restarted or late, and two jobs on one switch."""

import json
import os
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.run.real_run import NEVER, RealRun

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

TARGET = ("--target", os.environ.get("KOFN_TARGET", "embedded"))

BASE = """
[run]
trials = ["all"]
target = {target}
max_iterations = 3000
trial_deadline_s = 60
[job]
workers = 3
{job}
[model]
learning_rate = 0.005
compute_ms = {compute_ms}
{events}
"""


def story(*events: str, job: str = "", target: float = 0.93, compute_ms: int = 8) -> str:
    """Return a configuration of a training of some seconds, or more with longer computing; a worker starts in two or
    more.
    """
    tables = "\n".join(f"[[event]]\n{event}" for event in events)
    return BASE.format(target=target, job=job, compute_ms=compute_ms, events=tables)


def results(run: RealRun) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run.out / "summary.json").read_text())
    return document


def iterations(path: Path) -> list[int]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["iteration"] for line in lines if "summary" not in line]


def test_one_worker_joins_late_and_another_is_killed_and_rejoins(tmp_path: Path) -> None:
    events = story(
        "at_iteration = 10\nstart = 'worker-1'",
        "at_iteration = 20\nkill = 'worker-2'",
        "at_iteration = 20\nafter_s = 0.5\nstart = 'worker-2'",
        job="start_workers = 2",
        compute_ms=20,
    )
    with RealRun(tmp_path, *TARGET, config=events) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
        assert "event: worker-1 started at iteration" in run.text()
        assert "event: worker-2 killed at iteration 2" in run.text()
        assert "event: worker-2 started at iteration" in run.text()
    (result,) = results(run)["trials"]
    assert (result["restarts"], result["missed_events"]) == (1, [])
    assert result["rejoins"] >= 1
    assert result["conservation_error"] is result["conservation_unchecked"] is None
    late = iterations(run.out / "all" / "worker-1.jsonl")
    assert late[0] > 10
    killed = iterations(run.out / "all" / "worker-2.jsonl")
    assert late[-1] == killed[-1] == result["iterations"], "both workers must be there at the end"
    assert max(later - earlier for earlier, later in pairwise(killed)) > 1, (
        "the killed worker must have missed iterations"
    )


@pytest.mark.long
def test_two_jobs_train_on_one_switch(tmp_path: Path) -> None:
    other = "[job]\nid = 7\nworkers = 2\nwords = 2\nslots = 128\n[model]\nhidden = [16]\nlearning_rate = 0.02"
    with RealRun(tmp_path, *TARGET, "--json", config=story(target=0.85), others=[other]) as run:
        run.until(lambda: run.lines(1, "all/job-7") > 3, "training of the other job")
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    document = json.loads(run.stdout.read_text())
    assert document["ok"] is True
    assert [job["job"] for job in document["jobs"]] == [1, 7]
    assert "all (1 of 1), job 7" in run.text()
    assert len(list((run.out / "all" / "job-1").glob("worker-*.npz"))) == 3
    assert len(list((run.out / "all" / "job-7").glob("worker-*.npz"))) == 2


def test_controller_may_be_killed_and_restarted(tmp_path: Path) -> None:
    events = story("at_iteration = 20\nkill = 'controller'", "at_iteration = 20\nafter_s = 0.5\nstart = 'controller'")
    with RealRun(tmp_path, *TARGET, config=events) as run:
        run.until(lambda: "the controller is away" in run.text(), "the controller's absence")
        folder = run.out / "certs"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        command = Path(f"/proc/{run.pid('kofn_host', '--rank', '0')}/cmdline").read_bytes().split(b"\0")
        assert command[command.index(b"--certs") + 1] == str(folder).encode()
        assert run.wait() == 0, run.text()
        assert not folder.exists()
        assert "the controller is back" in run.text()
    (result,) = results(run)["trials"]
    assert result["restarts"] == 1
    assert result["rejoins"] == 3, "every worker must rejoin once"


def test_stall_is_explained_while_it_lasts(tmp_path: Path) -> None:
    events = story("at_iteration = 20\nkill = 'switch'", target=NEVER)
    with RealRun(tmp_path, *TARGET, config=events) as run:
        answers = "the controller says: the switch does not answer"
        run.until(lambda: answers in run.text(), "an explanation")  # earlier the controller may not know yet
        line = next(line for line in run.text().splitlines() if "no iteration for" in line and answers in line)
        assert "just before: switch killed at iteration 2" in line
