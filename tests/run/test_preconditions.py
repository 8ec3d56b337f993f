"""A missing requirement of a machine is named with its remedy."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kofn.run.clean import remove_certificates
from kofn.run.errors import RunError
from kofn.run.network import BOOT
from kofn.run.preconditions import check_machine, check_management, check_ports, check_space, holders
from kofn.run.state import hold, running, start_time
from kofn_common.config.network import NetworkSection
from kofn_common.results.folder import RunFolder, point_latest, trial_names
from tests.ports import own_port


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path / "state"))
    boot = tmp_path / "boot.py"
    boot.touch()
    monkeypatch.setattr("kofn.run.preconditions.BOOT", boot)


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Yield two ports without a listener."""
    with own_port() as one, own_port() as other:
        yield one, other


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name in names else which(name))


def test_good_machine_passes(ports: tuple[int, int]) -> None:
    check_machine("embedded")
    check_ports(NetworkSection(p4runtime_port=ports[0], controller_port=ports[1]))


def test_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RunError, match=r"needs root: sudo make run, or sudo \.venv/bin/kofn run"):
        check_machine("embedded")


def test_port_in_use_names_its_process(ports: tuple[int, int]) -> None:
    with (
        socket.create_server(("127.0.0.1", ports[1])),
        pytest.raises(RunError, match=rf"{ports[1]} \(network.controller_port\) is in use by pid {os.getpid()} \("),
    ):
        check_ports(NetworkSection(p4runtime_port=ports[0], controller_port=ports[1]))


def test_local_port_of_a_connection_names_its_process(ports: tuple[int, int]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
        pytest.raises(RunError, match=rf"controller_port\) is in use by pid {os.getpid()} \("),
    ):
        check_ports(NetworkSection(p4runtime_port=ports[0], controller_port=connection.getsockname()[1]))


def test_process_with_line_breaks_in_its_arguments_stays_on_one_line(ports: tuple[int, int]) -> None:
    lines = ("import socket, sys", "with socket.create_server(('127.0.0.1', int(sys.argv[1]))):", " print(flush=True)")
    code = "\n".join([*lines, " sys.stdin.read()"])
    with subprocess.Popen([sys.executable, "-c", code, str(ports[0])], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (owner,) = holders(ports[0])
        process.kill()
    assert owner.startswith(f"pid {process.pid} (")
    assert "\n" not in owner


def test_full_disk_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_space(tmp_path / "not" / "there")
    monkeypatch.setattr("kofn.run.preconditions.RESULT_BYTES", 1 << 62)
    with pytest.raises(RunError, match=rf"^{tmp_path} has \d+ MB left, the results in {tmp_path}/not/there need "):
        check_space(tmp_path / "not" / "there")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as a run does")
def test_overlapping_management_network_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.run.preconditions.BOOT", BOOT)
    check_management(NetworkSection(management="198.18.7.0/24"))
    with pytest.raises(
        RunError, match=r"^network.management must not overlap a host's network, got 10.0.0.0/16 and h1's 10.0.0.1/24"
    ):
        check_management(NetworkSection(management="10.0.0.0/16"))


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "cc", "gcc", "clang")
    with pytest.raises(RunError, match="apt-get install gcc"):
        check_machine("embedded")


def test_missing_bmv2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "simple_switch_grpc")
    with pytest.raises(RunError, match=r"p4lang-bmv2 .* or use --target embedded"):
        check_machine("bmv2")


def test_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    with hold(tmp_path / "one"):
        assert (run := running()) is not None
        assert (run.pid, run.folder) == (os.getpid(), str(tmp_path / "one"))
        with (
            pytest.raises(RunError, match=rf"pid {os.getpid()}, .*one\): wait for it, or end it with kofn stop"),
            hold(tmp_path / "two"),
        ):
            pass
    assert running() is None


def test_stale_record_is_ignored(tmp_path: Path) -> None:
    with hold(tmp_path / "one"):
        text = (tmp_path / "state" / "running").read_text()
    started = start_time(os.getpid())
    (tmp_path / "state" / "running").write_text(text.replace(str(started), "17"))
    assert running() is None


def test_certificates_of_a_killed_run_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "one" / "certs").mkdir(parents=True)
    (tmp_path / "one" / "summary.json").touch()
    with hold(tmp_path / "one"):
        remove_certificates()
        assert (tmp_path / "one" / "certs").exists(), "a run in progress keeps its certificates"
        text = (tmp_path / "state" / "running").read_text()
    remove_certificates()
    assert (tmp_path / "one" / "certs").exists(), "a run that ended in order keeps its certificates"
    (tmp_path / "state" / "running").write_text(text.replace(str(start_time(os.getpid())), "17"))
    remove_certificates()
    assert [entry.name for entry in (tmp_path / "one").iterdir()] == ["summary.json"]


def test_pass_folders_are_distinct() -> None:
    assert trial_names(["throughput", "fixed:2", "throughput"]) == ["throughput", "fixed-2", "throughput-again-2"]


def test_repeated_trial_is_named_by_objective_and_number(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", ["fixed:2", "mine:Mine", "fixed:2"])
    assert [entry.name for (entry,) in folder.trials] == ["fixed:2", "mine:Mine", "fixed:2-again-2"]


def test_latest_follows_the_newest_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        RunFolder.create(tmp_path / "runs" / name, ["all"])
        point_latest(tmp_path / "runs" / name)
        assert (tmp_path / "runs" / "latest").resolve() == tmp_path / "runs" / name


def test_other_folders_get_no_link(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "mine", ["all"])
    point_latest(tmp_path / "mine")
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_symlink()] == []
