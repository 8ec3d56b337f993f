"""Real runs from end to end, and every early end: nothing is left behind, and the reason is printed."""

import contextlib
import json
import os
import pty
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from kofn_common.config.objectives import DEFAULT
from kofn_common.results.record import KILLED
from tests.run.real_run import NEVER, RealRun
from tests.targets import on_bmv2

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

GRACE_S = 30.0
REPORTED_S = 30.0
"""Limit for ending with a summary and a report, on a busy machine."""
TARGET = ("--target", os.environ.get("KOFN_TARGET", "embedded"))
"""The target of tests in which the switch does not matter."""


@pytest.mark.parametrize("target", ["embedded", on_bmv2(pytest.mark.long)])
@pytest.mark.long
def test_two_passes_run_to_the_end(tmp_path: Path, target: str) -> None:
    seeing = ("--set", "network.pcap=true", *(("--set", "network.trace=1") if target == "embedded" else ()))
    with RealRun(tmp_path, "--target", target, "--json", *seeing, report=True) as run:
        run.until_training()
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    for name in (DEFAULT, "all"):
        frames = list((run.out / name / "pcap").iterdir())
        assert {path.name.rpartition("_")[2] for path in frames} == {"in.pcap", "out.pcap"}
        assert all(path.stat().st_size > 24 for path in frames), "captures must have packets"
        said = (run.out / name / "logs" / "switch.log").read_text()
        assert (said.count("packet 1 at port"), said.count("packet 2 at port")) == (int(target == "embedded"), 0)
    summary = json.loads(run.stdout.read_text())
    assert summary["ok"] is True
    assert summary["provenance"]["switch"].startswith({"embedded": "kofn-switch ", "bmv2": "BMv2 "}[target])
    assert [entry["objective"] for entry in summary["trials"]] == [DEFAULT, "all"]
    assert [entry["late_gradients"] for entry in summary["trials"]][1] == 0
    assert all(entry["conservation_error"] is None for entry in summary["trials"])
    assert (run.out / "report.html").read_text().count("<svg") == 5
    merged = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert {(line["trial"], line["worker"]) for line in merged} == {(DEFAULT, 0), (DEFAULT, 1), ("all", 0), ("all", 1)}
    assert np.load(run.out / "all" / "worker-0.npz")["results"].dtype == np.int64
    assert "rate h1 -> h2: configured 200 Mbit/s" in run.stderr.read_text()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_signal_during_training_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    with RealRun(tmp_path, *TARGET, target=NEVER, report=True) as run:
        run.until_training()
        begin = time.monotonic()
        run.process.send_signal(number)
        run.process.send_signal(number)  # impatient users press twice
        assert run.wait(REPORTED_S) == 130, run.text()
        assert time.monotonic() - begin < REPORTED_S
        assert run.leftovers() == []
        if number != signal.SIGHUP:  # after a hang-up no terminal shows the output
            assert f"kofn run: stopped by {number.name}" in run.text()
            assert f"kept in {run.out}: logs and" in run.text()
        summary = json.loads((run.out / "summary.json").read_text())
        assert summary["early_end"].startswith(f"stopped by {number.name}")
        assert summary["trials"][0]["iterations"] > 3
        assert "<svg" in (run.out / "report.html").read_text()


def test_signal_while_the_network_is_created_ends_everything(tmp_path: Path) -> None:
    with RealRun(tmp_path, *TARGET, target=NEVER) as run:
        run.until((run.out / "boot.log").exists, "the network's start")
        run.process.send_signal(signal.SIGINT)
        assert run.wait(REPORTED_S) == 130, run.text()
        assert run.leftovers() == []


def test_kill_9_leaves_nothing(tmp_path: Path) -> None:
    with RealRun(tmp_path, *TARGET, target=NEVER) as run:
        run.until_training()
        run.process.kill()
        run.wait(GRACE_S)
        deadline = time.monotonic() + GRACE_S
        certificates = [str(run.out / "certs")]
        while run.leftovers() != certificates and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run.leftovers() == certificates, "only files may be left, which the next run or kofn clean removes"
        assert run.kofn("clean").returncode == 0
        assert run.leftovers() == []
        assert not (run.out / "summary.json").exists()
        reported = run.kofn("report", str(run.out))
        assert reported.returncode == 1
        assert f"trial {DEFAULT}: did not end: {KILLED}" in reported.stderr
        assert (run.out / "report.html").exists()


@pytest.mark.long
def test_closed_terminal_ends_a_run_whose_session_leader_waits(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with RealRun(tmp_path, *TARGET, target=NEVER, terminal=slave) as run:
        os.close(slave)
        os.set_blocking(master, False)
        run.until(lambda: read_all(master) and run.lines() > 3, "training")
        run.until_training()
        os.close(master)
        run.wait(REPORTED_S)
        assert run.leftovers() == []


def read_all(terminal: int) -> bool:
    """Read a terminal's output, so that writing to it does not block."""
    with contextlib.suppress(BlockingIOError):
        while os.read(terminal, 65536):
            continue
    return True


def test_links_are_removed_after_the_death_of_boot(tmp_path: Path) -> None:
    with RealRun(tmp_path, *TARGET, target=NEVER) as run:
        run.until_training()
        os.kill(run.pid("--driver", "auto"), signal.SIGKILL)
        assert run.wait(REPORTED_S) == 1
        assert run.leftovers() == []
        assert "kofn run: the network process has ended" in run.stderr.read_text()
        assert "everything else is removed" in run.stderr.read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("worker-1", ("kofn_host", "--rank", "1")),
        pytest.param("controller", ("kofn_controller",), marks=pytest.mark.long),
        pytest.param("switch", ("--no-p4",), marks=pytest.mark.long),
    ],
)
def test_process_that_dies_is_named(tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    with RealRun(tmp_path, *TARGET, target=NEVER) as run:
        run.until_training()
        os.kill(run.pid(*words), signal.SIGKILL)
        assert run.wait(REPORTED_S) == 1, run.text()
        assert f"kofn run: {name} ended with exit code -9 (log: " in run.text()
        early = json.loads((run.out / "summary.json").read_text())["early_end"]
        assert early.startswith(f"{name} ended with exit code -9 (log: ")
        assert run.leftovers() == []


def test_pass_beyond_its_deadline_ends(tmp_path: Path) -> None:
    with RealRun(tmp_path, *TARGET, target=NEVER, deadline_s=3) as run:
        run.until_up()
        assert run.wait() == 1
        assert f"trial {DEFAULT!r} was not over after 3 s (run.trial_deadline_s)" in run.text()
        assert run.leftovers() == []


def test_stop_ends_a_run_and_only_one_run_is_active(tmp_path: Path) -> None:
    with RealRun(tmp_path, *TARGET, target=NEVER) as run:
        run.until_training()
        refused = run.kofn("clean")
        assert refused.returncode == 1
        assert "kofn stop first" in refused.stderr
        stopped = run.kofn("stop")
        assert stopped.returncode == 0, stopped.stderr
        assert f"ending pid {run.process.pid}" in stopped.stdout
        assert run.wait(REPORTED_S) == 130
        assert run.leftovers() == []
        assert run.kofn("stop").stdout == "kofn stop: no run is going on\n"
        cleaned = run.kofn("clean")
        assert cleaned.returncode == 0
        assert cleaned.stdout.endswith("kofn clean: done\n")
