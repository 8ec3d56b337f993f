"""A switch under another one's name is refused, by its own statement of its identity."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kofn.experiments.chaos.command import command as chaos
from kofn.run.errors import RunError
from kofn.run.preconditions import check_machine
from kofn.run.runner import command as run
from kofn.run.switch_identity import answering, bmv2
from kofn_switch.cli.names import make_names
from kofn_switch.identity import BMV2, NAME, SwitchIdentity, version
from tests.ports import own_port
from tests.run.real_run import RealRun
from tests.system.control.switches import SwitchProcess, running
from tests.targets import TARGETS
from tests.waiting import until

REFUSED = rf"^{BMV2} must be BMv2, got {NAME} {version()} \(from .*/{BMV2} --version\): take its folder off the PATH"

WRAPPER = f"""\
#!/bin/sh
[ "$1" = --version ] && echo 1.15.5 && exit
exec "{sys.executable}" -m kofn_switch "$@"
"""
"""The embedded switch behind a command that lies about its version."""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def named(folder: Path, script: str) -> Path:
    """Write a command with BMv2's name."""
    folder.mkdir(exist_ok=True)
    path = folder / BMV2
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder at the front of the PATH."""
    folder = tmp_path / "names"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


@pytest.fixture
def faked(path: Path) -> Path:
    """Give kofn-switch BMv2's names."""
    make_names(path)
    return path


@pytest.mark.slow
def test_kofn_switch_under_bmv2_s_name_is_not_bmv2(faked: Path) -> None:
    with pytest.raises(RunError, match=REFUSED):
        bmv2()
    with pytest.raises(RunError, match=REFUSED):
        check_machine("bmv2")
    check_machine("embedded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (run, ["--target", "bmv2"]),
        (chaos, ["--target", "bmv2"]),
        (chaos, ["--target", "embedded", "--target", "bmv2", "--if-present"]),
    ],
)
def test_every_command_refuses_it_before_anything_starts(
    faked: Path, tmp_path: Path, command: object, arguments: list[str]
) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(command, [*arguments, "--out", str(out)])  # type: ignore[arg-type]
    assert result.exit_code == 1
    assert f"{BMV2} must be BMv2, got {NAME} {version()}" in " ".join(result.output.split())
    assert not out.exists()


@pytest.mark.slow
def test_the_tests_refuse_it(faked: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", __file__]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {BMV2} must be BMv2, got {NAME} {version()}" in result.stderr


@pytest.mark.parametrize("script", ["echo 1.15.5", "echo 1.15.0-7b4a5c2d"])
def test_bmv2_prints_its_version_only(path: Path, script: str) -> None:
    named(path, f"#!/bin/sh\n{script}\n")
    assert bmv2() == SwitchIdentity("BMv2", script.removeprefix("echo "))


@pytest.mark.parametrize(
    ("script", "got"),
    [
        ("#!/bin/sh\necho 4ward 0.1\n", "4ward 0.1"),
        ("#!/bin/sh\n", "no answer"),
        ("#!/bin/sh\necho 1.15.5\necho libbm.so: not found >&2\nexit 127\n", "libbm.so: not found"),
        ("#!/nowhere/python\n", r"\[Errno 2\] No such file or directory"),
    ],
)
def test_output_of_another_program_is_quoted(path: Path, script: str, got: str) -> None:
    named(path, script)
    with pytest.raises(RunError, match=rf"^{BMV2} must be BMv2, got {got}.* \(from {path}/{BMV2} --version\)"):
        bmv2()


@pytest.mark.parametrize("target", TARGETS)
def test_running_switch_tells_its_identity(target: str, tmp_path: Path) -> None:
    with running(target, tmp_path) as switch:
        until(lambda: listens(switch.port))
        assert asyncio.run(answering(target, switch.address)).name == {"embedded": NAME, "bmv2": "BMv2"}[target]


@pytest.mark.parametrize(
    ("target", "other", "words"),
    [
        ("embedded", "bmv2", rf"must be BMv2 \(network.target is 'bmv2'\), got {NAME} {version()}$"),
        *(
            pytest.param(
                one.values[0],
                "embedded",
                rf"must be {NAME} \(network.target is 'embedded'\), got one that does not tell its name$",
                marks=one.marks,
            )
            for one in TARGETS[1:]
        ),
    ],
)
def test_running_switch_of_the_other_target_is_refused(target: str, other: str, words: str, tmp_path: Path) -> None:
    with running(target, tmp_path) as switch:
        until(lambda: listens(switch.port))
        with pytest.raises(RunError, match=rf"^the switch at {switch.address} {words}"):
            asyncio.run(answering(other, switch.address))


def test_command_that_lies_about_its_version_is_exposed_by_its_switch(path: Path, tmp_path: Path) -> None:
    command = [str(named(path, WRAPPER))]
    assert bmv2() == SwitchIdentity("BMv2", "1.15.5")
    with own_port() as port:
        switch = SwitchProcess(command=command, port=port, log=tmp_path / "switch.log")
        switch.start()
        try:
            until(lambda: listens(port))
            with pytest.raises(RunError, match=rf"must be BMv2 .*, got {NAME} {version()}$"):
                asyncio.run(answering("bmv2", switch.address))
        finally:
            switch.kill()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
def test_run_with_a_lying_command_trains_nothing(path: Path, tmp_path: Path) -> None:
    named(path, WRAPPER)
    with RealRun(tmp_path, "--target", "bmv2") as real:
        assert real.wait() == 1
        assert f"must be BMv2 (network.target is 'bmv2'), got {NAME} {version()}" in " ".join(real.text().split())
        assert not list(real.out.glob("*/worker-*.jsonl"))
        assert json.loads((real.out / "run.json").read_text())["provenance"]["switch"] == ""
