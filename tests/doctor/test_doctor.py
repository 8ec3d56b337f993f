"""`kofn doctor` on a healthy machine, and with real faults, each of which must be the first failing check."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kofn.doctor.checks import Check, CheckError, CheckSkipped, Finding, by_detail, first_failure, walk
from kofn.doctor.command import command
from kofn.doctor.running import RunningChecks
from kofn.run.state import Running, hold
from kofn_common.config.objectives import DEFAULT
from tests.doctor.real_doctor import KOFN, Doctor
from tests.run.real_run import NEVER, RealRun
from tests.targets import TARGETS

HOPS = [
    *("root", "python", "commands", "hosts", "kernel", "ports", "leftovers", "alone", "network", "interfaces"),
    *("switch", "P4Runtime", "program", "controller", "management", "forwarding", "gRPC", "access", "attach"),
    *("contribution", "aggregation", "largest packet", "shaping"),
]


def real(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that creates networks."""
    skip = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
    return pytest.mark.root(skip(test))


def states(answer: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["state"] for check in answer["checks"]}


def detail_of(answer: dict[str, Any], name: str) -> str:
    return next(check["detail"] for check in answer["checks"] if check["name"] == name)


def failure(answer: dict[str, Any], name: str) -> str:
    """Return the detail of the first failing check, which must be this one; all earlier ones must be good."""
    assert answer["failed"] == name, answer["stderr"]
    place, found = HOPS.index(name), states(answer)
    assert list(found) == HOPS
    assert [found[other] for other in HOPS[:place]] == ["ok"] * place
    assert {found[other] for other in HOPS[place + 1 :]} <= {"skipped"}
    return detail_of(answer, name)


@real
@pytest.mark.parametrize("target", TARGETS)
def test_healthy_tree_passes_all_checks(tmp_path: Path, target: str) -> None:
    with Doctor(tmp_path, "--json", "--target", target, workers=8, racks=2) as doctor:
        code, answer = doctor.answer()
    assert (code, answer["ok"], answer["failed"]) == (0, True, None), answer["stderr"]
    assert states(answer) == dict.fromkeys(HOPS, "ok")
    assert "leaf-1: " in detail_of(answer, "P4Runtime")
    assert "h1, h2, h3, h4: k = 4 of 4 workers" in detail_of(answer, "attach")
    assert re.search("h2 -> h3[^;]*: configured 50 Mbit/s, measured", detail_of(answer, "shaping"))


@real
@pytest.mark.parametrize("target", TARGETS)
def test_healthy_machine_passes_all_checks_beside_an_interface_of_another_program(tmp_path: Path, target: str) -> None:
    other = "ip link add s1-eth2 type veth peer name other"
    with Doctor(tmp_path, "--json", "--target", target, before=other) as doctor:
        code, answer = doctor.answer(left=("other", "s1-eth2"))
    assert (code, answer["ok"], answer["failed"]) == (0, True, None), answer["stderr"]
    assert states(answer) == dict.fromkeys(HOPS, "ok")
    assert "k = 2 of 2 workers" in detail_of(answer, "attach")
    assert "8260 bytes, 2048 sums exact" in detail_of(answer, "largest packet")
    assert "h2 -> h1: configured 100 Mbit/s, measured" in detail_of(answer, "shaping")
    assert detail_of(answer, "access") == "h1, h2: refused without a certificate and without a token"
    assert detail_of(answer, "interfaces") == "s1-eth1_2, s1-eth2_2, kofn-mgmt_2 are up"


@real
@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        ("ip link set h1-eth0 down", "interfaces", "no carrier at s1-eth1"),
        ("ip route add 10.0.0.254/32 dev lo", "contribution", "h1: no answer to "),
        pytest.param(
            "ip route add blackhole 172.30.255.1/32",
            "management",
            "h1 -> root: 172.30.255.2 cannot connect",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "ip route add blackhole 10.0.0.2/32", "forwarding", "h1 -> h2: 10.0.0.2: ", marks=pytest.mark.long
        ),
        pytest.param(
            "ip route add 10.0.0.254/32 dev h1-eth0 mtu 1500",
            "largest packet",
            "counted BAD_LENGTH",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "tc qdisc replace dev h1-eth0 root tbf rate 20mbit burst 100kb latency 50ms",
            "shaping",
            "h1 -> h2: configured 100 Mbit/s, measured ",
            marks=pytest.mark.long,
        ),
    ],
)
def test_fault_in_a_host_is_named(tmp_path: Path, fault: str, name: str, words: str) -> None:
    with Doctor(tmp_path, "--json", fault=fault) as doctor:
        code, answer = doctor.answer()
    assert code == 1
    assert words in failure(answer, name)


def path_without(folder: Path, command: str) -> str:
    """Return a folder with every command of this machine but one."""
    commands = folder / "commands"
    commands.mkdir()
    for entry in os.environ["PATH"].split(":"):
        for program in Path(entry).glob("*") if entry else ():
            if program.name != command and not (commands / program.name).is_symlink():
                (commands / program.name).symlink_to(program)
    return str(commands)


@real
def test_missing_command_is_named(tmp_path: Path) -> None:
    with Doctor(tmp_path, "--json", path=path_without(tmp_path, "tc")) as doctor:
        code, answer = doctor.answer()
    assert code == 1
    assert failure(answer, "commands") == "the command 'tc' is missing"


@real
def test_port_in_use_is_named_with_its_process(tmp_path: Path) -> None:
    listener = "import socket, time; s = socket.create_server(('127.0.0.1', 50052)); print(flush=True); time.sleep(60)"
    before = f'coproc "{sys.executable}" -c "{listener}" 2> /dev/null; read -u "${{COPROC[0]}}"'
    with Doctor(tmp_path, "--json", before=before) as doctor:
        out, _ = doctor.process.communicate(timeout=30)
    answer = json.loads(out)
    assert "TCP port 50052 (network.controller_port) is in use by pid " in failure(answer, "ports")


@real
@pytest.mark.parametrize(
    ("script", "name", "words"),
    [
        (
            "[ $1 = --version ] && echo 1.15.5 && exit; echo 'no such interface' >&2; exit 3",
            "switch",
            "switch ended with exit code 3; its last words: no such interface",
        ),
        pytest.param(
            # another --device-id
            '[ $1 = --version ] && echo 1.15.5 && exit; exec "{python}" -m kofn_switch "${{@/#0/7}}"',
            "P4Runtime",
            "device 0: NOT_FOUND",
            marks=pytest.mark.long,
        ),
        (
            '[ $1 = --version ] && echo 1.15.5 && exit; exec "{python}" -m kofn_switch "$@"',
            "P4Runtime",
            "must be BMv2 (network.target is 'bmv2'), got kofn-switch ",
        ),
        ('exec "{python}" -m kofn_switch "$@"', "commands", "simple_switch_grpc must be BMv2, got kofn-switch "),
    ],
)
def test_program_that_is_no_switch_is_named(tmp_path: Path, script: str, name: str, words: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "simple_switch_grpc"
    program.write_text("#!/bin/bash\n" + script.format(python=sys.executable) + "\n")
    program.chmod(0o755)
    with Doctor(tmp_path, "--json", "--target", "bmv2", path=f"{folder}:{os.environ['PATH']}") as doctor:
        code, answer = doctor.answer()
    assert code == 1
    assert words in failure(answer, name)


@real
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with Doctor(tmp_path, "--json") as doctor:
        doctor.until_started("kofn_controller")
        doctor.interrupt()
        code, answer = doctor.answer()
    assert code == 130
    assert answer["stderr"].endswith("kofn doctor: stopped by SIGINT (Ctrl-C)\n")
    assert not list(tmp_path.glob("kofn-doctor-*"))


@pytest.mark.long
@real
def test_active_run_is_examined(tmp_path: Path) -> None:
    with RealRun(tmp_path, target=NEVER) as run:
        inside = ["nsenter", f"--net=/proc/{run.process.pid}/ns/net", sys.executable, "-c", KOFN, "doctor", "--json"]
        run.until(run.out.exists, "its folder: everything else is still to come")
        starting = subprocess.run(inside, env=run.environment, capture_output=True, text=True, timeout=60, check=False)
        assert starting.returncode == 0, starting.stdout + starting.stderr
        run.until_training()
        counted = run.out / DEFAULT / "status.jsonl"
        counters = re.compile(r'"CLOSED": ?[1-9]')
        run.until(
            lambda: bool(counters.search(counted.read_text())), "counters, which the controller reads each second"
        )
        result = subprocess.run(inside, env=run.environment, capture_output=True, text=True, timeout=30, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        answer = json.loads(result.stdout)
        expected = dict.fromkeys(["run", "controller", "switch", "workers", "progress"], "ok")
        assert states(answer) == expected, result.stdout + run.text()
        assert "CLOSED" in detail_of(answer, "switch")
        assert "certificate and token" in detail_of(answer, "controller")
        os.kill(run.pid("--no-p4"), 19)  # SIGSTOP: the switch exists and does nothing
        result = subprocess.run(inside, env=run.environment, capture_output=True, text=True, timeout=30, check=False)
        answer = json.loads(result.stdout)
        assert (result.returncode, answer["failed"]) == (1, "progress"), answer
        assert "job 1 stays at iteration" in detail_of(answer, "progress")


def test_another_doctor_is_not_examined_as_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path))
    with hold(tmp_path / "other", "doctor"):
        result = CliRunner().invoke(command, [])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "another run is going on (kofn doctor, pid " in result.stderr


def test_run_that_ends_during_the_examination_is_no_failure(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    checks = RunningChecks(Running(pid=ended.pid, start_time=1, folder=str(tmp_path))).checks()
    findings = asyncio.run(walk(checks, lambda finding: None))
    assert next(finding.detail for finding in findings) == "the run has just ended"
    assert first_failure(findings) is None


def test_checks_depend_on_each_other() -> None:
    shown: list[Finding] = []

    def check(name: str, outcome: str | Exception) -> Check:
        async def check() -> str:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return Check(name=name, check=check)

    checks = [
        check("a", "1 ms"),
        check("b", CheckSkipped("no b here")),
        check("c", CheckError("2\nlines", "mend c")),
        check("d", ""),
    ]
    findings = asyncio.run(walk(checks, shown.append))
    assert findings == shown
    assert [finding.state for finding in findings] == ["ok", "skipped", "FAILED", "skipped"]
    assert [finding.detail for finding in findings] == ["1 ms", "no b here", "2 lines", "depends on 'c'"]
    failed = first_failure(findings)
    assert failed is not None and (failed.name, failed.advice) == ("c", "mend c")
    assert first_failure(findings[:2]) is None


def test_details_fit_the_screen() -> None:
    short = Finding(name="gRPC", state="ok", detail=by_detail({"h1": "good", "h2": "good", "h3": "bad"}))
    assert short.text() == "ok      gRPC           h1, h2: good; h3: bad"
    long = Finding(name="gRPC", state="ok", detail="; ".join(f"h{number}: {'x' * 40}" for number in (1, 2)))
    assert long.text().splitlines()[1] == 23 * " " + "h2: " + 40 * "x"
