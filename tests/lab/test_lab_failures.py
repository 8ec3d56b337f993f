"""A machine, the network or the runner vanishes, in each phase of a run: the run ends in time with a name, and nothing
is left anywhere."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.machines import Laboratory, laboratory, missing
from tests.lab.test_lab_run import written

pytestmark = [
    pytest.mark.root,
    pytest.mark.lab,
    pytest.mark.skipif(missing() is not None, reason=f"no laboratory: {missing()}"),
]

ENDED_S = 15.0
"""A run ends within this time after a machine has gone."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Laboratory]:
    with laboratory(tmp_path / "lab") as made:
        for _ in range(3):
            made.start()
        assert made.kofn("lab", "setup", str(made.file())).returncode == 0
        yield made


SOME = 5
"""The iterations after which a machine vanishes during the training."""

FILL = "mount -o remount,size=$(($(df --output=used -k /root | tail -1) + 64))k /root"
"""Leaves 64 kB of the disk with the run's folder."""


@contextmanager
def begun(lab: Laboratory, *, iterations: int = 5000) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
    """Begin a run, which would train for long; end it, whatever happens in the block."""
    out, job = lab.folder / "run", written(lab, "job", iterations=iterations)
    run = lab.begin("run", str(job), "--lab", str(lab.file()), "--out", str(out))
    try:
        yield run, out
    finally:
        run.kill()
        run.wait()


def trained(out: Path) -> bool:
    """Return whether the run's folder has some iterations of every worker."""
    files = [out / "all" / f"worker-{rank}.jsonl" for rank in range(4)]
    return all(path.exists() and path.read_bytes().count(b"\n") >= SOME for path in files)


def said(lab: Laboratory) -> str:
    return " ".join((lab.folder / "output").read_text().split())


@pytest.mark.parametrize("phase", ["connection", "network", "start", "training"])
def test_run_ends_when_a_machine_reboots(lab: Laboratory, phase: str) -> None:
    with begun(lab) as (run, out):
        if phase == "connection":
            lab.until((out / "boot-root@machine2.log").exists, "the connection", run)
        elif phase == "network":
            lab.until(lambda: bool(lab.machines["machine2"].leftovers()), "the machine's processes", run)
        elif phase == "start":
            lab.until((out / "all" / "logs" / "worker-0.log").exists, "the workers' start", run)
        else:
            lab.until(lambda: trained(out), "some iterations", run)
        lab.machines["machine2"].vanish()
        assert run.wait(ENDED_S) == 1
    assert "machine2" in said(lab).partition("kofn run:")[2]
    assert lab.leftovers() == {}
    if phase == "training":
        summary = json.loads((out / "summary.json").read_text())
        assert summary["trials"][0]["iterations"] > 0


def test_run_ends_when_a_machine_reboots_after_the_last_iteration(lab: Laboratory) -> None:
    with begun(lab, iterations=30) as (run, out):
        last = out / "all" / "worker-0.npz"
        lab.until(last.exists, "the collection of results", run)
        lab.machines["machine2"].vanish()
        assert run.wait(ENDED_S) == 1
    assert lab.leftovers() == {}


def test_run_ends_when_the_network_to_a_machine_vanishes(lab: Laboratory) -> None:
    with begun(lab) as (run, out):
        lab.until(lambda: trained(out), "the first iteration", run)
        lab.cut("machine2")
        assert run.wait(ENDED_S) == 1
    assert "root@machine2: nothing was heard of this machine for 5 s" in said(lab)
    assert lab.leftovers() == {}


@pytest.mark.parametrize("what", ["runner", "boot"])
def test_kill_leaves_nothing(lab: Laboratory, what: str) -> None:
    with begun(lab) as (run, out):
        lab.until(lambda: trained(out), "the first iteration", run)
        if what == "runner":
            run.kill()
        else:
            lab.machines["machine2"].run("pkill", "-KILL", "-f", "^python3 mininet/boot.py")
            assert run.wait(ENDED_S) == 1
    assert lab.leftovers() == {}


def test_full_disk_of_a_machine_is_named(lab: Laboratory) -> None:
    with begun(lab) as (run, out):
        lab.until(lambda: trained(out), "the first iteration", run)
        lab.machines["machine2"].run("sh", "-c", FILL)
        assert run.wait(60) == 1
    assert "root@machine2: the disk of /root/.cache/kofn/lab/runs" in said(lab), said(lab)[-1500:]
    assert lab.leftovers() == {}


def test_other_version_is_named(lab: Laboratory) -> None:
    lab.machines["machine3"].run("sh", "-c", "rm -r /root/.cache/kofn/lab/*/.complete /root/.cache/kofn/lab/*/mininet")
    done = lab.kofn("run", "--lab", str(lab.file()))
    assert done.returncode == 1 and "root@machine3 has not this checkout of kofn" in done.stderr, done.stderr
    assert lab.leftovers() == {}


def test_stop_ends_a_run(lab: Laboratory) -> None:
    with begun(lab) as (run, out):
        lab.until(lambda: trained(out), "the first iteration", run)
        begin = time.monotonic()
        assert "done" in lab.kofn("stop").stdout
        assert run.wait(10) == 130 and time.monotonic() - begin < 10 + os.getloadavg()[0]
    assert lab.leftovers() == {}
