"""The P4Runtime side against real switches."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import finsy as fy
import pytest

from controller.entries import Layout, all_entries, job_entry
from controller.errors import PushError
from controller.push import Program, SwitchLink, read_all
from controller.updates import difference
from run.config import Job
from tests.controller.harness import star, until
from tests.controller.switches import SwitchProcess, running
from tests.targets import TARGETS

VERDICTS_SEEN = {"CLAIMED", "ADDED", "CLOSED", "LATE", "STALE", "REFUSED", "DUPLICATE", "WRONG_PORT"}


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SwitchProcess]:
    with running(request.param, tmp_path) as process:
        yield process


@contextlib.asynccontextmanager
async def linked(switch: SwitchProcess, workers: int = 4, k: int = 4) -> AsyncIterator[SwitchLink]:
    layout = Layout(job=Job(workers=workers), hosts=star(workers))
    link = SwitchLink(address=switch.address, device_id=0, program=Program(), layout=layout, k=k)
    task = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(60):
            await link.ready.wait()
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def missing(switch: SwitchProcess, link: SwitchLink, k: int) -> list[str]:
    """What the switch's entries lack or have too much, as a second client sees it."""
    options = fy.SwitchOptions(p4info=link.program.p4info, device_id=0, initial_election_id=1)
    async with fy.Switch("onlooker", switch.address, options) as onlooker:
        present = await read_all(onlooker)
        return [str(update) for update in difference(present, all_entries(link.layout, k), onlooker.p4info)]


def test_everything_is_installed_and_k_is_one_modify(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with linked(switch) as link:
            assert link.connected
            assert await missing(switch, link, 4) == []
            await link.set_k(2)
            assert await missing(switch, link, 2) == []
            await until(lambda: link.counters)
            assert link.counters.keys() >= VERDICTS_SEEN
            assert set(link.counters.values()) == {0}

    asyncio.run(scenario())


def test_a_restarted_switch_is_installed_again_with_the_latest_k(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with linked(switch) as link:
            switch.kill()
            await until(lambda: not link.connected)
            await link.set_k(3)  # no error: it is put into force when the switch is back
            switch.start()
            async with asyncio.timeout(60):
                while not link.connected:
                    await asyncio.sleep(0.01)
            assert await missing(switch, link, 3) == []

    asyncio.run(scenario())


def test_a_second_controller_takes_over_what_the_first_one_left(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with linked(switch, workers=4):
            pass
        async with linked(switch, workers=2, k=1) as link:
            assert await missing(switch, link, 1) == []

    asyncio.run(scenario())


def test_somebody_else_may_be_primary_for_a_while(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with linked(switch) as link:
            options = fy.SwitchOptions(p4info=link.program.p4info, device_id=0, initial_election_id=1000)
            async with fy.Switch("person", switch.address, options) as person:
                await person.modify([job_entry(link.layout.job, 1)])
                assert link._switch is not None
                await until(lambda: not link._switch.is_primary)
                await link.set_k(2)  # no error: it is put into force when the person leaves
                assert len(await missing(switch, link, 1)) == 0
            await until(lambda: link._switch.is_primary)
            async with asyncio.timeout(10):
                while await missing(switch, link, 2):
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())


def test_refused_updates_are_named_as_in_p4(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with linked(switch) as link:
            link.layout = Layout(job=Job(id=9, workers=4), hosts=star(4))  # its entry was never inserted
            with pytest.raises(PushError) as error:
                await link.set_k(2)
            for words in ("MODIFY", "jobs", "job=0x9", "set_job(k=0x2", "NOT_FOUND"):
                assert words in str(error.value)

    asyncio.run(scenario())


def test_nobody_answers() -> None:
    async def scenario() -> None:
        layout = Layout(job=Job(workers=2), hosts=star(2))
        link = SwitchLink(address="127.0.0.1:1", device_id=0, program=Program(), layout=layout, k=2)
        task = asyncio.create_task(link.run())
        await until(lambda: link.fault)
        assert not link.connected
        assert "UNAVAILABLE" in link.fault
        assert "\n" not in link.fault
        task.cancel()

    asyncio.run(scenario())


def test_difference_is_what_is_missing_changed_or_too_much() -> None:
    schema = fy.P4Schema(Program().p4info)
    layout = Layout(job=Job(workers=2), hosts=star(2))
    assert difference(all_entries(layout, 2), all_entries(layout, 2), schema) == []
    (update,) = difference(all_entries(layout, 2), all_entries(layout, 1), schema)
    assert update.type == update.MODIFY
    (update,) = difference([*all_entries(layout, 2), job_entry(Job(id=5), 1)], all_entries(layout, 2), schema)
    assert update.type == update.DELETE
    fewer = Layout(job=Job(workers=1), hosts=star(2))
    updates = difference(all_entries(layout, 2), all_entries(fewer, 2), schema)
    kinds = [update.Type.Name(update.type) for update in updates]
    assert kinds == ["DELETE"] * 3 + ["MODIFY"]  # members, owners, hosts of the second; the job's group
