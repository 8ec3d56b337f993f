"""`python -m kofn_controller` as a process: exit codes, messages, and a clean end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kofn_common.config.objectives import DEFAULT
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.security import CONTROLLER, OPERATOR, Credentials, channel
from tests.ports import own_port
from tests.system.control.switches import SwitchProcess, running
from tests.targets import TARGETS

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    config, topology = tmp_path / "run.toml", tmp_path / "topology.json"
    config.write_text("[job]\nworkers = 2\n")
    hosts = {f"h{n}": {"ip": f"10.0.0.{n}/24", "mac": f"08:00:00:00:00:0{n}"} for n in (1, 2)}
    links = [["h1", "s1-p1"], ["h2", "s1-p2"]]
    topology.write_text(json.dumps({"hosts": hosts, "switches": {"s1": {}}, "links": links}))
    return ["--config", str(config), "--topology", str(topology)]


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SwitchProcess]:
    with running(request.param, tmp_path) as process:
        yield process


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9"}  # must not matter
    return subprocess.Popen(
        [sys.executable, "-m", "kofn_controller", *arguments], stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    """Yield two addresses without a listener."""
    with own_port() as one, own_port() as other:
        yield [f"127.0.0.1:{port}" for port in (one, other)]


def fails(*arguments: str) -> str:
    process = start(*arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    last: str = errors.splitlines()[-1]
    return last


def test_absent_switch_is_named(files: list[str], addresses: list[str]) -> None:
    address = addresses[0]
    line = fails(*files, "--p4runtime", address, "--listen", "127.0.0.1:0", "--wait", "0.5")
    assert line == (
        f"controller: no switch at {address} after 0.5 s (UNAVAILABLE: Connection refused): "
        "`make run` starts everything, `python -m kofn_switch` a switch; --p4runtime gives another address"
    )


def test_address_in_use_is_named(files: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = fails(*files, "--listen", address)
    assert line.startswith(f"controller: cannot listen at {address}: in use by another controller")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--config", "none.toml", "none.toml: No such file or directory"),
        ("--topology", "none.json", "none.json: No such file or directory"),
        ("--objective", "fixed:3", "workers = 2, got 'fixed:3'"),
        ("--decisions", "/nowhere/decisions.jsonl", "--decisions /nowhere/decisions.jsonl: No such file"),
        ("--log", "/nowhere/log", "--log /nowhere/log: No such file"),
    ],
)
def test_unusable_options_are_named(files: list[str], option: str, value: str, words: str) -> None:
    assert words in fails(*files, option, value)


def test_more_workers_than_hosts_are_refused(files: list[str]) -> None:
    Path(files[1]).write_text("[job]\nworkers = 3\n")
    assert fails(*files) == "controller: job.workers must be at most 2, got 3: the topology has 2 hosts"


def test_jobs_that_do_not_fit_together_are_named(files: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[job]\nworkers = 1\nid = 2\n")
    line = fails(*files, "--config", str(other))
    assert (
        line
        == "controller: job.workers must be at most 0, got 1: the topology has 2 hosts, 2 of them are earlier jobs'"
    )


def test_missing_certificates_are_named(files: list[str], tmp_path: Path) -> None:
    line = fails(*files, "--certs", str(tmp_path))
    assert line.startswith(f"controller: {tmp_path}/ca.pem: No such file or directory")


def test_two_jobs_share_a_controller_with_certificates(
    files: list[str], addresses: list[str], switch: SwitchProcess, tmp_path: Path
) -> None:
    configs = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for job, path in enumerate(configs, 1):
        path.write_text(f"[job]\nworkers = 1\nid = {job}\n")
    certs = tmp_path / "certs"
    make_certificates(certs, {1: 1, 2: 1})
    address, log = addresses[0], tmp_path / "log"
    process = start(
        "--config", str(configs[0]), "--config", str(configs[1]), *files[2:],
        "--p4runtime", switch.address, "--listen", address, "--certs", str(certs), "--log", str(log), "--wait", "60",
    )  # fmt: skip
    try:
        assert asyncio.run(jobs_of(address, certs)) == [1, 2]
        process.terminate()
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, "")
    assert f"job 2, objective {DEFAULT}, listening at {address} (mutual TLS)" in log.read_text()


async def jobs_of(address: str, certs: Path) -> list[int]:
    async with channel(Credentials.load(certs, OPERATOR), address, CONTROLLER) as line:
        inspector = kofn_pb2_grpc.InspectorStub(line)
        status = await inspector.GetStatus(pb.StatusRequest(job=2), wait_for_ready=True, timeout=60)
        assert (status.job, status.workers) == (2, 1)
        return list(status.jobs)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_controller_cleanly(
    files: list[str], addresses: list[str], switch: SwitchProcess, end: signal.Signals, tmp_path: Path
) -> None:
    listen = [part for address in addresses for part in ("--listen", address)]
    log, decisions = tmp_path / "log", tmp_path / "decisions.jsonl"
    process = start(
        *files, "--objective", "fixed:2", "--p4runtime", switch.address, *listen,
        "--log", str(log), "--decisions", str(decisions), "--wait", "60",
    )  # fmt: skip
    try:
        for address in addresses:
            with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
                inspector = kofn_pb2_grpc.InspectorStub(channel)
                status = inspector.GetStatus(pb.StatusRequest(), wait_for_ready=True, timeout=60)
                assert (status.k, status.objective, status.switch_connected) == (2, "fixed:2", True)
        process.send_signal(end)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, "")
    assert f"listening at {addresses[0]}, {addresses[1]}" in log.read_text()
    assert decisions.exists()
