"""Meters, idle timeouts and metadata of entries over P4Runtime."""

import asyncio
from typing import Any

import pytest
from finsy.proto import p4r

from tests.switch.p4runtime.every_table import call, entry, number, pipeline, probe
from tests.switch.p4runtime.harness import Primary, Target, check_refused, primary, update

STILL = p4r.MeterConfig(cir=0, cburst=2, pir=0, pburst=4)  # packets: two green, two yellow, then red


def cell(index: int | None = None, config: p4r.MeterConfig | None = None) -> p4r.Entity:
    place = None if index is None else p4r.Index(index=index)
    return p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=number("cell_meter"), index=place, config=config))


def metered(a: bytes, **fields: Any) -> p4r.Entity:
    action = p4r.TableAction(action=call("metered_answer", b"\1"))
    return entry("metered", a, action, **fields)


def beside(a: bytes, config: p4r.MeterConfig | None = None) -> p4r.Entity:
    row = entry("metered", a).table_entry
    return p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=row, config=config))


def every(table: str, **fields: Any) -> p4r.Entity:
    return p4r.Entity(table_entry=p4r.TableEntry(table_id=number(table), **fields))


async def colours(target: Target, table: str, a: int, count: int = 6) -> list[int]:
    return [(await probe(target, table, a=a))[2] for _ in range(count)]


@pytest.mark.root
def test_meter_cells_are_configured_read_and_reset(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target, push=False) as client:
            await client.push(pipeline())
            config = p4r.MeterConfig(cir=0, cburst=2 * 27, pir=0, pburst=4 * 27)
            await client.write(update("MODIFY", cell(3, config)))
            assert await client.read(cell(3)) == [cell(3, config)]
            assert await client.read(cell(4)) == [cell(4)]
            assert await colours(target, "cell_meter", 3) == [0, 0, 1, 1, 2, 2]
            assert await colours(target, "cell_meter", 4) == [0] * 6
            await client.write(update("MODIFY", cell(3)))
            assert await colours(target, "cell_meter", 3) == [0] * 6

    asyncio.run(scenario())


def test_all_cells_are_configured_together(embedded: Target) -> None:  # BMv2 answers UNKNOWN
    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            await client.push(pipeline())
            config = p4r.MeterConfig(cir=0, cburst=1, pir=0, pburst=1)
            await client.write(update("MODIFY", cell(None, config)))
            assert await client.read(cell()) == [cell(index, config) for index in range(16)]
            assert len(await client.read(p4r.Entity(meter_entry=p4r.MeterEntry()))) == 16

    asyncio.run(scenario())


@pytest.mark.root
def test_direct_meters_belong_to_their_entries(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target, push=False) as client:
            await client.push(pipeline())
            await client.write(update("INSERT", metered(b"\1", meter_config=STILL)))
            await client.write(update("INSERT", metered(b"\2")))
            wanted = every("metered", meter_config=p4r.MeterConfig())
            assert await client.read(wanted) == [metered(b"\1", meter_config=STILL), metered(b"\2")]
            assert await colours(target, "metered", 1) == [0, 0, 1, 1, 2, 2]
            assert await colours(target, "metered", 2) == [0] * 6
            await client.write(update("MODIFY", beside(b"\2", STILL)))
            assert await client.read(beside(b"\2")) == [beside(b"\2", STILL)]
            assert await colours(target, "metered", 2) == [0, 0, 1, 1, 2, 2]
            if not target.embedded:
                return  # BMv2 keeps a meter's configuration when an entry is modified without one
            await client.write(update("MODIFY", metered(b"\2")))
            assert await client.read(beside(b"\2")) == [beside(b"\2")]
            assert await colours(target, "metered", 2) == [0] * 6

    asyncio.run(scenario())


WRONG = {
    "cell beyond the end": ("MODIFY", cell(16, STILL), "OUT_OF_RANGE", "Tables.cell_meter must be 0 to 15, got 16"),
    "negative cell": ("MODIFY", cell(-1, STILL), "INVALID_ARGUMENT", "meter Tables.cell_meter must be 0 to 15, got -1"),
    "inserted cell": ("INSERT", cell(1, STILL), "INVALID_ARGUMENT", "meter Tables.cell_meter can only be MODIFIED"),
    "committed above peak": (
        "MODIFY",
        cell(1, p4r.MeterConfig(cir=2, cburst=1, pir=1, pburst=1)),
        "INVALID_ARGUMENT",
        "cir 2 of meter Tables.cell_meter is above pir 1",
    ),
    "negative burst": (
        "MODIFY",
        cell(1, p4r.MeterConfig(cir=1, cburst=-2, pir=1, pburst=1)),
        "INVALID_ARGUMENT",
        "rates and bursts of meter Tables.cell_meter must be 0 or more",
    ),
    "excess burst": ("MODIFY", cell(1, p4r.MeterConfig(eburst=1)), "UNIMPLEMENTED", "eburst 1 of meter"),
    "counts by colour": (
        "MODIFY",
        p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=number("cell_meter"), counter_data=p4r.MeterCounterData())),
        "UNIMPLEMENTED",
        "counts by colour of meter Tables.cell_meter",
    ),
    "meter of no entry": ("MODIFY", beside(b"\7", STILL), "NOT_FOUND", "Tables.metered has no entry (0x7)"),
    "inserted meter": (
        "INSERT",
        beside(b"\1", STILL),
        "INVALID_ARGUMENT",
        "can only be MODIFIED: it lives with its entry",
    ),
    "meter of a table without": (
        "MODIFY",
        p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=every("aged").table_entry)),
        "INVALID_ARGUMENT",
        "Tables.aged has no direct meter; tables that have one: Tables.metered",
    ),
    "time since a hit": (
        "INSERT",
        every("aged", priority=1, time_since_last_hit=p4r.TableEntry.IdleTimeout()),
        "INVALID_ARGUMENT",
        "has_time_since_last_hit must not be set in WriteRequest",
    ),
    "negative timeout": (
        "INSERT",
        every("aged", priority=1, idle_timeout_ns=-1),
        "INVALID_ARGUMENT",
        "idle_timeout_ns must be 0 (never) or more, got -1",
    ),
}


def test_invalid_writes_are_refused_by_name(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            await client.push(pipeline())
            await check_refused(client, WRONG)

    asyncio.run(scenario())


def aged(value: bytes, **fields: Any) -> p4r.Entity:
    match = p4r.FieldMatch(field_id=1, ternary=p4r.FieldMatch.Ternary(value=value, mask=b"\xff"))
    action = p4r.TableAction(action=call("answer", b"\1"))
    row = p4r.TableEntry(table_id=number("aged"), match=[match], priority=1, action=action, **fields)
    return p4r.Entity(table_entry=row)


async def next_idle(client: Primary) -> p4r.IdleTimeoutNotification:
    while not (message := await client.hear()).HasField("idle_timeout_notification"):
        pass
    return message.idle_timeout_notification


def test_primary_is_notified_of_idle_entries(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            await client.push(pipeline())
            noted = {"metadata": b"cookie", "controller_metadata": 7}
            await client.write(update("INSERT", aged(b"\1", idle_timeout_ns=5_000_000, **noted)))
            await client.write(update("INSERT", aged(b"\2", idle_timeout_ns=3_600_000_000_000)))
            await client.write(update("INSERT", aged(b"\3")))
            wanted = aged(b"\1", idle_timeout_ns=5_000_000, **noted).table_entry
            wanted.ClearField("action")
            for _ in range(2):  # it repeats
                notification = await next_idle(client)
                assert list(notification.table_entry) == [wanted]
                assert notification.timestamp > 0

    asyncio.run(scenario())


def test_time_since_the_last_hit_is_read(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            await client.push(pipeline())
            await client.write(update("INSERT", aged(b"\1")))
            asked = p4r.TableEntry.IdleTimeout()
            (row,) = await client.read(every("aged", time_since_last_hit=asked))
            assert row.table_entry.time_since_last_hit.elapsed_ns > 0
            (row,) = await client.read(every("aged"))
            assert row == aged(b"\1")
            with pytest.raises(
                Exception, match=r"Tables.metered has no idle timeouts: leave time_since_last_hit unset"
            ):
                await client.read(every("metered", time_since_last_hit=asked))

    asyncio.run(scenario())


def test_metadata_is_read_and_filters(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target, push=False) as client:
            await client.push(pipeline())
            rows = [metered(b"\1", metadata=b"one"), metered(b"\2", metadata=b"two")]
            await client.write(*(update("INSERT", row) for row in rows))
            assert await client.read(every("metered")) == rows
            if target.embedded:  # BMv2 reads all
                assert await client.read(every("metered", metadata=b"two")) == [rows[1]]
            changed = metered(b"\1", metadata=b"three")
            await client.write(update("MODIFY", changed))
            assert await client.read(every("metered")) == [changed, rows[1]]

    asyncio.run(scenario())
