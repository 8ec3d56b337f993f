"""`kofn doctor --remote` on machines that share nothing names exactly the broken part of the path."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kofn.doctor.checks import CheckError, CheckSkipped
from kofn.doctor.echo import Echo, checksum
from kofn.doctor.remote import RemoteChecks, RemoteJob
from kofn_common.config.schema import Config
from kofn_common.rpc.certificates import make_certificates, make_p4runtime_certificates
from tests.run.machines import CONTROLLER, SWITCH, Machine, ip, machines, share_out
from tests.waiting import until

__all__ = ["machines"]

ROOT = [
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces"),
    pytest.mark.timeout(600),
]
WAY = ("--switch", SWITCH, "--controller", CONTROLLER, "--certs", "certs", "--json")
NAMES = ["certificates", "way", "tunnel", "mtu", "clock", "controller", "p4runtime"]


def examine(machine: Machine, *arguments: str) -> tuple[str | None, dict[str, str], str]:
    """Return the failing check, the states of all checks by name, and the failing check's words."""
    out = machine.folder / "findings.json"
    begin = out.stat().st_size if out.exists() else 0
    process = machine.start("doctor", "job.toml", "--remote", *WAY, *arguments, out=out)
    code = process.wait(120)
    document: dict[str, Any] = json.loads(out.read_text()[begin:])
    assert code == (0 if document["ok"] else 1)
    states = {each["name"]: each["state"] for each in document["checks"]}
    words = next((f"{each['detail']} {each['advice']}" for each in document["checks"] if each["state"] == "FAILED"), "")
    return document["failed"], states, words


class TestOnMachines:
    pytestmark = ROOT

    def test_broken_part_of_the_path_is_named(self, machines: list[Machine], tmp_path: Path) -> None:
        share_out(tmp_path, machines)
        make_p4runtime_certificates(tmp_path / "p4runtime")
        for number in (0, 1):
            shutil.copytree(tmp_path / "p4runtime", machines[number].folder / "p4runtime")
        one, lan = machines[1], f"{machines[0].network.rpartition('-')[0]}-lan"

        failed, _, words = examine(one)
        assert failed == "tunnel" and "which answers pings itself" in words

        programmed = ("--p4runtime", f"{SWITCH}:50051")
        machines[0].start("switch", "--tunnels", "4", *programmed, "--certs", "p4runtime")
        until(lambda: interfaces(machines[0]).count("kofn4") > 0)
        failed, _, words = examine(one)
        assert failed == "controller" and f"{CONTROLLER}: no process listens" in words

        client = ("--p4runtime-certs", "p4runtime")
        machines[0].start("controller", "job.toml", "--certs", "certs", *programmed, *client)
        until(lambda: "listening at" in machines[0].words(), 200)
        failed, states, words = examine(one, *programmed, *client)
        assert failed is None and states == dict.fromkeys(NAMES, "ok"), words
        assert "kofn-w0" not in interfaces(one)

        # the path, not this machine's interface, takes 1004 bytes at most: a bridge leaves room for a tag
        ip("-n", lan, "link", "set", "p2", "mtu", "1000")
        failed, _, words = examine(one)
        assert failed == "mtu" and "1166 with their tunnel, do not pass: 1004 do; eth0 would take them" in words
        assert "job.words up to 3" in words
        ip("-n", lan, "link", "set", "p2", "mtu", "1500")

        # the port is blocked on the way back
        rule = ("ipproto", "udp", "dport", "19277", "blackhole")
        ip("-n", machines[0].network, "rule", "add", *rule)
        failed, _, words = examine(one)
        assert failed == "tunnel" and f"UDP port 19277 of {SWITCH}, which answers pings itself" in words
        ip("-n", machines[0].network, "rule", "delete", *rule)

        # a certificate of another authority, another worker's, and none of the switch's
        certs = one.folder / "certs"
        shutil.move(certs, one.folder / "good")
        make_certificates(certs, {1: 4})
        failed, _, words = examine(one)
        assert failed == "controller" and "its certificate is of another authority than the one here" in words
        shutil.rmtree(certs)
        shutil.copytree(one.folder / "good", certs)
        for end in ("pem", "key"):
            shutil.copy(certs / f"job-1-worker-1.{end}", certs / f"job-1-worker-0.{end}")
        failed, _, words = examine(one)
        assert failed == "certificates" and "worker-1.job-1.kofn's, not worker-0.job-1.kofn's" in words
        shutil.rmtree(certs)
        shutil.copytree(one.folder / "good", certs)
        for end in ("pem", "key"):
            shutil.copy(certs / f"job-1-worker-0.{end}", one.folder / "p4runtime" / f"client.{end}")
        failed, _, words = examine(one, *programmed, *client)
        assert failed == "p4runtime" and "does not agree on TLS" in words


def interfaces(machine: Machine) -> str:
    return subprocess.run(["ip", "-n", machine.network, "link"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("ahead_s", "fails"), [(-4.0, False), (90.0, True), (-3600.0, True)])
def test_clock_that_is_far_off_is_named(ahead_s: float, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Echo, "clock_ahead_s", lambda self: ahead_s)
    check = clock()
    if fails:
        with pytest.raises(CheckError, match=rf"{abs(ahead_s):.2f} s (ahead|behind)"):
            asyncio.run(check.check())
    else:
        assert "4.00 s behind" in asyncio.run(check.check())


def test_machine_without_a_clock_answer_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Echo, "clock_ahead_s", lambda self: None)
    with pytest.raises(CheckSkipped):
        asyncio.run(clock().check())


def clock() -> Any:
    job = RemoteJob(config=Config(), source=Path("job.toml"), rank=0, switch=SWITCH, controller=CONTROLLER, certs=None)
    remote = RemoteChecks(job)
    remote._address, remote._echo = SWITCH, Echo(address=SWITCH)
    return next(check for check in remote.checks() if check.name == "clock")


def test_checksum_over_a_message_with_its_checksum_is_zero() -> None:
    message = bytes([8, 0, 0, 0, 1, 2, 3, 4, 5])
    whole = message[:2] + checksum(message).to_bytes(2, "big") + message[4:]
    assert checksum(message) != 0 and checksum(whole) == 0
