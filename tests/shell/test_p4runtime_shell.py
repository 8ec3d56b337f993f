"""p4runtime-shell can read the switch and, on request, change it, beside a running controller.

The shell has its own environment (`make shell`); the first run of this test creates it.
"""

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import finsy as fy
import pytest

from tests.switch.p4runtime.harness import DEVICE_ID, Target, running
from tests.targets import read
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "p4src/build"
SHELL = ROOT / ".venv-shell/bin/python"


@pytest.fixture(scope="module")
def shell() -> Path:
    made = subprocess.run([ROOT / "kofn/run/setup.sh", "shell"], check=False, capture_output=True, text=True, cwd=ROOT)
    if made.returncode:
        pytest.skip(f"p4runtime-shell could not be installed: {made.stderr[-300:]}")
    return SHELL


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running("embedded", tmp_path_factory.mktemp("shell")) as target:
        yield target


async def drive(shell: Path, target: Target, *arguments: object) -> tuple[dict[str, Any], str]:
    """Run the script; return its results, and the shell's whole output."""
    command = [shell, Path(__file__).parent / "drive.py", target.address, DEVICE_ID, *arguments]
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await asyncio.wait_for(process.communicate(), 60))[0].decode()
    assert process.returncode == 0, output
    return json.loads(output.splitlines()[-1]), output


def options() -> dict[str, Path]:
    return {"p4info": BUILD / "kofn.p4info.txtpb", "p4blob": BUILD / "kofn.json"}


async def k_in_switch(controller: fy.Switch) -> list[int]:
    entries = await read(controller, fy.P4TableEntry("jobs"))
    return [int(entry.action.args["k"]) for entry in entries]


@pytest.mark.slow
@pytest.mark.long
def test_shell_reads_beside_a_controller(shell: Path, switch: Target) -> None:
    async def scenario() -> None:
        async with switch.client(**options()) as controller:
            seen, output = await drive(shell, switch, 1)
            assert "you only have read access" in output
            assert "ingress.admission.members" in seen["tables"]
            assert seen["k"] == []
            assert seen["verdicts"] > 0
            assert controller.is_primary

    asyncio.run(scenario())


def test_shell_writes_and_the_controller_regains_the_switch(shell: Path, switch: Target) -> None:
    async def scenario() -> None:
        async with switch.client(**options()):
            pass
        async with switch.client(p4force=False, **options()) as controller:
            seen, output = await drive(shell, switch, int(time.time()), 5)
            assert "you only have read access" not in output
            assert seen["k"] == [5]
            async with asyncio.timeout(PATIENCE_S):
                while not controller.is_primary:
                    await asyncio.sleep(0.01)
            assert await k_in_switch(controller) == [5]

    asyncio.run(scenario())


def test_prompt_opens_like_make_shells(shell: Path, switch: Target) -> None:
    async def scenario() -> None:
        async with switch.client(**options()):
            command = [shell, "-m", "p4runtime_sh", "--grpc-addr", switch.address, "--device-id", str(DEVICE_ID)]
            process = await asyncio.create_subprocess_exec(
                *map(str, [*command, "--election-id", "0,1"]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said = await asyncio.wait_for(process.communicate(b"tables\nexit\n"), 60)
            assert "Welcome to the IPython shell for P4Runtime" in said[0].decode()
            assert "ingress.admission.members" in said[0].decode()

    asyncio.run(scenario())
