"""`kofn hosts`, `kofn exec` and `kofn shell` in a network of mininet/boot.py."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mininet.conftest import machine
from tests.mininet.outer_machine import Machine
from tests.run.real_run import KOFN

__all__ = ["machine"]


class Kofn:
    """The command, with a folder of records."""

    def __init__(self, state: Path) -> None:
        self.environment = {**os.environ, "KOFN_STATE_DIR": str(state)}

    def __call__(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", KOFN, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=30,
            env=self.environment,
            check=False,
        )

    def refused(self, code: int, *arguments: str) -> str:
        done = self(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert len(done.stderr.splitlines()) == 1
        return done.stderr.strip()


@pytest.fixture
def kofn(machine: Machine) -> Iterator[Kofn]:
    with machine.boot("--hosts", "2", "--driver", "netns", "--mbps", "50") as boot:
        boot.expect("ready")
        yield Kofn(machine.state)


@pytest.mark.slow
def test_hosts_are_listed(kofn: Kofn) -> None:
    rows = [line.split() for line in kofn("hosts").stdout.splitlines()]
    assert rows[1] == ["h1", "10.0.0.1", "08:00:00:00:00:01", "172.30.255.2", "1", "s1-eth1", "50"]
    assert [row[0] for row in rows] == ["host", "h1", "h2"]
    assert json.loads(kofn("hosts", "--json").stdout)["h2"]["interface"] == "s1-eth2"


@pytest.mark.slow
def test_command_has_the_hosts_network_and_the_callers_streams(kofn: Kofn) -> None:
    links = json.loads(kofn("exec", "h2", "ip", "-json", "link").stdout)
    assert {link["ifname"] for link in links} == {"lo", "h2-eth0", "mgmt0"}
    assert kofn("exec", "h1", "cat", given="as it is\n").stdout == "as it is\n"
    done = kofn("exec", "h1", "sh", "-c", "echo out; echo --json >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "--json\n")
    assert kofn("exec", "h1", "sh", "-c", "kill -TERM $$").returncode == -15
    assert kofn("exec", "h1", "sh", "-c", "kill -PIPE $$; echo ignored").stdout == "", (
        "SIGPIPE kills the command, as in a shell"
    )


@pytest.mark.slow
def test_shell_names_its_host(kofn: Kofn) -> None:
    done = kofn("shell", "h2", given="echo $KOFN_HOST; ip -br addr show h2-eth0; exit 3\n")
    assert done.returncode == 3
    assert done.stdout.split()[:1] == ["h2"]
    assert "10.0.0.2/24" in done.stdout
    prompt = subprocess.run(
        ["script", "-qec", shlex.join([sys.executable, "-c", KOFN, "shell", "h1"]), "/dev/null"],
        input="exit\n",
        env=kofn.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "[h1] " in prompt.stdout


@pytest.mark.slow
def test_missing_host_or_command_is_one_line(kofn: Kofn) -> None:
    assert kofn.refused(2, "exec", "h11", "true") == (
        "kofn exec: HOST must be among h1, h2, got 'h11': did you mean 'h1'?"
    )
    assert kofn.refused(2, "shell", "s1").endswith("HOST must be among h1, h2, got 's1'")
    assert kofn.refused(127, "exec", "h1", "nosuch") == "kofn exec: no command 'nosuch' is on the PATH"


@pytest.mark.parametrize("command", [["hosts"], ["exec", "h1", "true"], ["shell", "h1"]])
def test_missing_network_is_reported(tmp_path: Path, command: list[str]) -> None:
    words = Kofn(tmp_path).refused(3, *command)
    assert words == f"kofn {command[0]}: no network runs: `make run` or `kofn run` starts a network"
