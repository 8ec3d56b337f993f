"""`kofn slots` with a switch that has a job."""

import asyncio
import itertools
import json
import threading
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kofn.cli.main import main
from kofn_controller.p4runtime.slot_window import slot_window
from kofn_switch.identity import BMV2
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.frames import GENERATION, contribution

VALUES = np.ones((HOSTS, 64), dtype=np.int64)
pytestmark = pytest.mark.root


def kofn_slots(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["slots", "--switch", address, *arguments])


def send(plane: DataPlane, block: int, *workers: int) -> None:
    for worker in workers:
        plane.lab.exchange(*contribution(worker, 7, block, VALUES[worker]))


def test_slots_of_the_present_iteration_are_shown(plane: DataPlane) -> None:
    """An iteration has three blocks in eight slots, so iteration 8 begins at slot 24 modulo 8."""
    plane.install(k=3, slots=8)
    if plane.switch.command[0] == BMV2:
        return
    for iteration in (7, 8):
        for block in range(3):
            slot = (3 * iteration + block) % 8
            for worker in range(3 if iteration == 7 else block + 1):
                frame = contribution(worker, iteration, block, VALUES[worker], slot=slot)
                plane.lab.exchange(*frame)

    async def look(iteration: int) -> list[tuple[int, int, bool, tuple[int, ...]]]:
        async with slot_window(plane.switch.address, device_id=0, job=1) as window:
            return [(one.iteration, one.block, one.closed, one.present) for one in await window.read(iteration)]

    assert asyncio.run(look(9)) == [(9, 0, False, ()), (9, 1, False, ()), (9, 2, False, ())], (
        "the slots of an iteration that has not begun are empty"
    )
    assert asyncio.run(look(8)) == [(8, 0, False, (0,)), (8, 1, False, (0, 1)), (8, 2, True, (0, 1, 2))]


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


def test_missing_workers_of_each_slot_are_shown(plane: DataPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.install(k=3, slots=8)
    if plane.switch.command[0] == BMV2:
        refused = kofn_slots(plane.switch.address)
        assert refused.exit_code == 2
        assert "does not read registers over P4Runtime (BMv2 cannot)" in refused.output
        return
    send(plane, 1, 0, 2)
    send(plane, 2, 3, 1, 0)
    send(plane, 5, 3)
    plane.lab.exchange(*contribution(3, 7, 5, VALUES[3], part=2, count=0))  # a second contribution of the same worker
    shown = kofn_slots(plane.switch.address)
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        "job 1: k = 3 of 4 workers; slots: 2 open, 1 closed, 5 empty",
        "slot  iteration  block  state  in the sum  missing",
        "   1          7      1  open   0, 2        1, 3",
        "   5          7      5  open   3           0, 1, 2",
        "missing from open slots: worker 1 in 2, worker 0 in 1, worker 2 in 1, worker 3 in 1",
    ]
    everything = kofn_slots(plane.switch.address, "--all").output.splitlines()
    assert everything[3].split() == ["2", "7", "2", "closed", "0,", "1,", "3", "2"]
    (job,) = json.loads(kofn_slots(plane.switch.address, "--json").output)
    assert (job["job"], job["k"], job["workers"], job["empty"]) == (1, 3, [0, 1, 2, 3], 5)
    assert [(one["slot"], one["state"], one["missing"]) for one in job["slots"]] == [
        (1, "open", [1, 3]),
        (2, "closed", [2]),
        (5, "open", [0, 1, 2]),
    ]
    monkeypatch.setattr("kofn.cli.slots.time.sleep", interrupt)  # the command runs until Ctrl-C
    watched = kofn_slots(plane.switch.address, "--watch", "--json")
    assert (watched.exit_code, [json.loads(line) for line in watched.output.splitlines()]) == (0, [[job]])
    other = kofn_slots(plane.switch.address, "--job", "9")
    assert (other.exit_code, "must be one of 1, the jobs" in " ".join(other.output.split())) == (2, True)
    plane.put_job(k=3, generation=GENERATION + 1, slots=8)
    assert "0 open, 0 closed, 8 empty" in kofn_slots(plane.switch.address).output


LOOKS = 20
"""On a busy machine a look may fall between two blocks, or before the first one."""


def open_slots(look: dict[str, Any]) -> list[dict[str, Any]]:
    return [slot for slot in look["slots"] if slot["state"] == "open"]


def test_blocks_open_for_milliseconds_are_seen(plane: DataPlane) -> None:
    """Each block is closed soon after it is opened; one is open at almost every moment."""
    plane.install(k=2, slots=1024)
    if plane.switch.command[0] == BMV2:
        pytest.skip("BMv2's registers cannot be read")
    over = threading.Event()

    def train() -> None:
        for block in itertools.cycle(range(1, 1000)):
            send(plane, block, 0)
            over.wait(0.02)
            send(plane, block, 1)
            if over.is_set():
                return

    training = threading.Thread(target=train)
    training.start()
    try:
        looks = (json.loads(kofn_slots(plane.switch.address, "--json").output)[0] for _ in range(LOOKS))
        seen = next(filter(None, map(open_slots, looks)), [])
    finally:
        over.set()
        training.join()
    assert seen, f"no open slot in {LOOKS} reads"
    assert {tuple(slot["missing"]) for slot in seen} == {(1, 2, 3)}


def test_absent_switch_is_reported() -> None:
    result = kofn_slots("127.0.0.1:1")
    assert result.exit_code == 3
    assert "no switch answers at 127.0.0.1:1: `make run` or `kofn run` starts a switch" in result.output
