"""Tables over P4Runtime, packets through files: neither interfaces nor root are needed."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from tests.switch.p4runtime.harness import (
    DEVICE_ID,
    Target,
    action,
    exact,
    frame,
    primary,
    table_entry,
    update,
    wait_until_ready,
)
from tests.switch.test_replay import HEADER, TIMEOUT_S, record, until
from tests.targets import TARGETS, switch_command

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.slow
def test_entries_are_written_before_packets_arrive(name: str, tmp_path: Path) -> None:
    """The switch starts without a program; packets wait in the pipes until its controller pushes one."""
    target = Target(name=name, address=f"unix:{tmp_path}/p4runtime.sock", log=tmp_path / "switch.log")
    for interface in ("a", "b"):
        os.mkfifo(tmp_path / f"{interface}_in.pcap")
    command = [
        *switch_command(name),
        "--no-p4",
        "--use-files",
        "0",
        "-i",
        "1@a",
        "-i",
        "2@b",
        "--device-id",
        str(DEVICE_ID),
    ]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}

    async def scenario() -> None:
        async with primary(target) as client:
            send = action("TestIngress.send", b"\2")
            await client.write(update("INSERT", table_entry("exacts", exact(b"\7"), action=send)))

    with (
        target.log.open("wb") as log,
        subprocess.Popen(
            [*command, "--", "--grpc-server-addr", target.address],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        with (tmp_path / "a_in.pcap").open("wb", buffering=0) as a:
            a.write(HEADER)  # BMv2 reads it before it opens the next file
            with (tmp_path / "b_in.pcap").open("wb", buffering=0) as b:
                b.write(HEADER)
                wait_until_ready(target, process)
                asyncio.run(scenario())
                a.write(record(1, frame(0, narrow=8)))
                a.write(record(2, frame(0, narrow=7)))
        assert until(1, tmp_path / "b_out.pcap") == [frame(0, narrow=7)]
        process.terminate()
        process.wait(TIMEOUT_S)
