"""`python -m kofn_switch` as a process: start, failed start, and end."""

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.ports import own_port
from tests.switch.p4runtime.harness import DEVICE_ID, PROGRAM, Target, primary
from tests.targets import switch_command
from tests.waiting import PATIENCE_S

END_S = 5.0

COMPILER = """#!/bin/sh
[ "$1" = --version ] && exit
trap ">{ended}" INT
echo >{called}
until [ -e {ended} ]; do sleep 0.1; done
exit 1
"""
"""Compiles until Ctrl-C; a compiler that is just starting may miss it."""


@pytest.fixture
def address() -> Iterator[str]:
    """Yield a free address."""
    with own_port() as port:
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def start(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start the switch; it is killed if the test leaves it running."""
    command = [*switch_command("embedded"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_switch_announces_that_it_listens_and_ends_cleanly(address: str, number: signal.Signals) -> None:
    with start("--no-p4", "--", "--grpc-server-addr", address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Server listening on {address}\n"
        asked_s = time.monotonic()
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, output, errors) == (0, "", "")
        assert time.monotonic() - asked_s < END_S


def test_ctrl_c_during_compilation_ends_the_switch_cleanly(tmp_path: Path) -> None:
    """The compiler gets the signal, too; that its end is no error is part of the test."""
    compiler, called, ended = tmp_path / "cc", tmp_path / "called", tmp_path / "ended"
    compiler.write_text(COMPILER.format(called=shlex.quote(str(called)), ended=shlex.quote(str(ended))))
    compiler.chmod(0o755)
    os.mkfifo(called)
    environment = {"CC": shlex.quote(str(compiler)), "KOFN_CACHE": str(tmp_path / "cache")}
    command = [*switch_command("embedded"), str(PROGRAM)]
    with (
        called.open("rb+", buffering=0) as calls,
        subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=os.environ | environment, start_new_session=True
        ) as process,
    ):
        calls.read(1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=30) == (None, "")
    assert process.returncode == 0


@pytest.mark.slow
def test_switch_ends_cleanly_under_a_connected_client(address: str, tmp_path: Path) -> None:
    async def scenario(process: "subprocess.Popen[str]") -> None:
        async with primary(Target(name="embedded", address=address, log=tmp_path)) as client:
            process.terminate()
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert await client.stream.read() is grpc.aio.EOF

    with start("--no-p4", "--device-id", str(DEVICE_ID), "--", "--grpc-server-addr", address) as process:
        assert process.stdout is not None
        process.stdout.readline()
        asyncio.run(scenario(process))
        asked_s = time.monotonic()
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        assert time.monotonic() - asked_s < END_S


def test_switch_starts_with_a_program(address: str) -> None:
    with start(str(PROGRAM), "--", "--grpc-server-addr", address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Server listening on {address}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--no-p4", "-i", "1@nonesuch0"], "switch: port 1: no interface is named nonesuch0; there are "),
        (["--bogus"], "switch: unrecognized arguments: --bogus; see --help"),
        ([str(Path(__file__))], "switch: "),
    ],
)
def test_failed_start_has_one_line_and_exit_code_2(address: str, arguments: list[str], words: str) -> None:
    with start(*arguments, "--", "--grpc-server-addr", address) as process:
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert output == ""
    assert errors.startswith(words)
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_second_switch_at_an_address_is_refused(address: str) -> None:
    with start("--no-p4", "--", "--grpc-server-addr", address) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with start("--no-p4", "--", "--grpc-server-addr", address) as second:
            _, errors = second.communicate(timeout=30)
        assert (second.returncode, errors) == (
            2,
            f"switch: --grpc-server-addr {address}: cannot listen: another process listens there\n",
        )


def test_help_is_printed() -> None:
    run = subprocess.run([sys.executable, "-m", "kofn_switch", "--help"], capture_output=True, text=True, check=True)
    assert "examples:" in run.stdout
