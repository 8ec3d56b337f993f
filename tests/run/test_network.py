"""The runner's requests to boot.py, and its waits for answers; boot.py is a stand-in."""

import asyncio
import json
from pathlib import Path

import pytest

from kofn.run.errors import RunError
from kofn.run.network import NetworkClient

BOOT = """
import json, pathlib, sys
host = {"ip": "10.0.0.1", "mac": "", "management": "", "port": 1, "interface": "s1-eth1", "mbps": 40.0}
print(json.dumps({"event": "ready", "driver": "netns", "hosts": {"h1": host}, "switches": []}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    with pathlib.Path(__file__).with_name("commands").open("a") as out:
        out.write(line)
    if command["do"] == "stop":
        break
    if command["host"] == "h1":
        print(json.dumps({"event": "shaped", "host": "h1", "mbps": command["mbps"]}), flush=True)
    else:
        print(json.dumps({"event": "error", "message": "host 'h2' is unknown"}), flush=True)
print(json.dumps({"event": "stopped"}), flush=True)
"""
"""A boot.py that accepts every request and writes it down."""


@pytest.fixture(autouse=True)
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the runner's boot.py."""
    stand_in = tmp_path / "boot.py"
    stand_in.write_text(BOOT)
    monkeypatch.setattr("kofn.run.network.BOOT", stand_in)


@pytest.mark.slow
def test_link_rate_is_changed_when_boot_confirms(tmp_path: Path) -> None:
    async def run() -> None:
        network = await NetworkClient.start(tmp_path, driver="auto", management="", log=tmp_path / "log")
        try:
            assert network.ready.hosts["h1"].mbps == 40
            for mbps in (10.0, 10.0, None):
                await network.shape("h1", mbps)
            with pytest.raises(RunError, match="network: host 'h2' is unknown"):
                await network.shape("h2", 10.0)
        finally:
            await network.stop()

    asyncio.run(run())
    commands = [json.loads(line) for line in (tmp_path / "commands").read_text().splitlines()]
    assert commands[:3] == [{"do": "shape", "host": "h1", "mbps": mbps} for mbps in (10.0, 10.0, None)]


def test_signal_at_the_moment_of_an_answer_is_not_lost(tmp_path: Path) -> None:
    async def run() -> None:
        network = await NetworkClient.start(tmp_path, driver="auto", management="", log=tmp_path / "log")
        try:
            waiting = asyncio.create_task(network._boot.wait("told", "", 10.0))
            await asyncio.sleep(0)
            network._boot._handle({"event": "told"})
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        finally:
            await network.stop()

    asyncio.run(run())
