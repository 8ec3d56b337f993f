"""A child of boot.py gets less of a processor: by the kernel's limit, or by a competing load."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cpu import LOAD, PREFIX, cgroups, niceness, remove_groups

from tests.mininet.outer_machine import Machine

BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def test_load_that_leaves_more_is_nicer() -> None:
    assert [niceness(share) for share in (0.5, 0.25, 0.8)] == [0, -5, 6]


def spent_s(pid: int) -> float:
    """Return a process's processor time in s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(pids: list[int], total_s: float) -> list[float]:
    """Wait until the processes have spent `total_s` together, and return each one's time."""
    deadline, before = time.monotonic() + 60, [spent_s(pid) for pid in pids]
    while True:
        spent = [spent_s(pid) - first for pid, first in zip(pids, before, strict=True)]
        if sum(spent) >= total_s:
            return spent
        assert time.monotonic() < deadline, spent
        time.sleep(0.02)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a load of high priority")
@pytest.mark.parametrize("share", [0.2, pytest.param(0.8, marks=pytest.mark.long)])
def test_load_leaves_a_process_its_share(share: float) -> None:
    processor = str(min(os.sched_getaffinity(0)))
    busy, load = (
        subprocess.Popen([sys.executable, "-c", code, *words], start_new_session=True)
        for code, words in ((BUSY, [processor]), (LOAD, [processor, str(niceness(share))]))
    )
    try:
        own_s, others_s = until([busy.pid, load.pid], 1.5)
    finally:
        for process in (busy, load):
            process.kill()
            process.wait()
    assert own_s / (own_s + others_s) == pytest.approx(share, abs=0.12)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a cgroup")
def test_cgroup_leaves_a_process_its_share_and_is_removed() -> None:
    cgroup = next(cgroups(), None)
    if cgroup is None:
        pytest.skip("no cgroup for processors can be made here")
    busy = subprocess.Popen([sys.executable, "-c", BUSY, str(min(os.sched_getaffinity(0)))])
    group = cgroup.folder / f"{PREFIX}{os.getpid()}-busy"
    try:
        try:
            cgroup.limit("busy", busy.pid, 0.2)
        except OSError as error:
            pytest.skip(f"no cgroup for processors can be made here: {error}")
        assert str(busy.pid) in (group / "cgroup.procs").read_text().split()
        began_s, before_s = time.monotonic(), spent_s(busy.pid)
        while time.monotonic() < began_s + 1.5:
            time.sleep(0.1)
        assert spent_s(busy.pid) - before_s <= 0.25 * (time.monotonic() - began_s) + 0.05
        remove_groups(os.getpid())
        assert group.exists(), "the group of a living process must stay"
    finally:
        busy.kill()
        busy.wait()
        remove_groups(os.getpid())
    assert not group.exists()


@pytest.mark.root
def test_limits_of_children_end_with_the_network(machine: Machine) -> None:
    busy = {"argv": [sys.executable, "-c", BUSY, str(min(os.sched_getaffinity(0)))], "node": "h1"}
    with machine.boot("--hosts", "1", "--driver", "netns") as boot:
        boot.expect("ready")
        boot.send(do="limit", id="busy", share=0.2)
        assert boot.expect("limited")["missed"] == "busy does not run"
        boot.send(do="start", id="busy", **busy)
        boot.expect("started")
        boot.send(do="limit", id="busy", share=0.2)
        assert boot.expect("limited") == {"event": "limited", "id": "busy", "missed": ""}
        boot.send(do="signal", id="busy", signal="KILL")
        assert boot.expect("exited")["id"] == "busy"
        boot.send(do="stop")
        boot.expect("stopped")
    assert not any(group.exists() for cgroup in cgroups() for group in cgroup.folder.glob(f"{PREFIX}{boot.pid}-*"))
