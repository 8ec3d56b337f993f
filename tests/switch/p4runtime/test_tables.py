"""Table entries are written, read and refused."""

import asyncio
from collections.abc import Iterable
from typing import Any

import finsy as fy
import pytest
from finsy.proto import p4r

from tests.switch.p4runtime.harness import Target, action, exact, primary, table_entry, update
from tests.targets import read

Field = p4r.FieldMatch
SEND, TAG, DROP = "TestIngress.send", "TestIngress.tag", "TestIngress.drop"

ENTRIES = [
    fy.P4TableEntry("exacts", match=fy.P4TableMatch({"hdr.test.narrow": 7}), action=fy.P4TableAction("send", port=2)),
    fy.P4TableEntry("exacts", match=fy.P4TableMatch({"hdr.test.narrow": 0}), action=fy.P4TableAction("drop")),
    fy.P4TableEntry(
        "exacts", match=fy.P4TableMatch({"hdr.test.narrow": 9}), action=fy.P4TableAction("wide", value=1 << 2047)
    ),
    fy.P4TableEntry(
        "prefixes", match=fy.P4TableMatch({"hdr.test.value": "10.0.0.0/8"}), action=fy.P4TableAction("tag", value=1)
    ),
    fy.P4TableEntry("prefixes", action=fy.P4TableAction("tag", value=4095)),
    fy.P4TableEntry(
        "patterns",
        match=fy.P4TableMatch(
            {"hdr.test.value": (0xFF0000, 0xFF0000), "hdr.test.narrow": (3, 5), "standard.ingress_port": 1}
        ),
        priority=10,
        action=fy.P4TableAction("tag", value=2),
    ),
    fy.P4TableEntry("patterns", priority=1, action=fy.P4TableAction("tag", value=3)),
]


async def read_all(switch: fy.Switch, table: str = "") -> list[fy.P4TableEntry]:
    return await read(switch, fy.P4TableEntry(table))


def texts(switch: fy.Switch, entries: Iterable[fy.P4TableEntry]) -> set[str]:
    return {str(entry.encode(switch.p4info)) for entry in entries}


def test_written_entries_are_read_back(target: Target) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            await switch.insert(ENTRIES)
            for table in ("exacts", "prefixes", "patterns"):
                wanted = [entry for entry in ENTRIES if entry.table_id == table]
                assert texts(switch, await read_all(switch, table)) == texts(switch, wanted)
            everything = await read_all(switch)
            assert {entry.table_id for entry in everything} == {"exacts", "prefixes", "patterns", "fixed"}

    asyncio.run(scenario())


def test_entry_is_modified_and_deleted(target: Target) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            match = fy.P4TableMatch({"hdr.test.narrow": 7})
            await switch.insert([fy.P4TableEntry("exacts", match=match, action=fy.P4TableAction("send", port=2))])
            changed = fy.P4TableEntry("exacts", match=match, action=fy.P4TableAction("send", port=3))
            await switch.modify([changed])
            assert texts(switch, await read_all(switch, "exacts")) == texts(switch, [changed])
            await switch.delete([fy.P4TableEntry("exacts", match=match)])
            assert await read_all(switch, "exacts") == []

    asyncio.run(scenario())


def test_reads_select_by_key_priority_and_action(embedded: Target) -> None:
    async def scenario() -> None:
        async with embedded.client() as switch:
            await switch.insert(ENTRIES)
            one = fy.P4TableEntry("exacts", match=fy.P4TableMatch({"hdr.test.narrow": 7}))
            assert texts(switch, await read(switch, one)) == texts(switch, ENTRIES[:1])
            low = fy.P4TableEntry("patterns", priority=1)
            assert texts(switch, await read(switch, low)) == texts(switch, ENTRIES[-1:])
        async with primary(embedded, push=False) as client:
            (dropping,) = await client.read(table_entry("exacts", action=action(DROP)))
            assert dropping.table_entry.match[0].exact.value == b"\0"

    asyncio.run(scenario())


def test_default_action_is_set_and_reset(target: Target) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            query = fy.P4TableEntry("exacts", is_default_action=True)

            async def default() -> fy.P4TableAction:
                (entry,) = await read(switch, query)
                assert entry.is_default_action
                return entry.action

            assert await default() == fy.P4TableAction("drop")
            sending = fy.P4TableAction("send", port=3)
            await switch.modify([fy.P4TableEntry("exacts", is_default_action=True, action=sending)])
            assert await default() == sending
            await switch.modify([query])
            assert await default() == fy.P4TableAction("drop")

    asyncio.run(scenario())


def test_const_entries_are_read_and_marked(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            entries = [entity.table_entry for entity in await client.read(table_entry("fixed"))]
            assert [(entry.match[0].exact.value, entry.is_const) for entry in entries] == [
                (b"\7", True),
                (b"\x08", True),
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [b"\7", b"\0\7", b"\0\0\0\0\7"])
def test_leading_zeros_are_accepted_and_not_returned(target: Target, value: bytes) -> None:
    async def scenario() -> None:
        async with primary(target) as client:
            entry = table_entry("exacts", exact(value), action=action(SEND, b"\0\0\1"))
            assert await client.outcomes(update("INSERT", entry)) == []
            (found,) = await client.read(table_entry("exacts"))
            assert found == table_entry("exacts", exact(b"\7"), action=action(SEND, b"\1"))

    asyncio.run(scenario())


def test_batch_is_tried_to_its_end_and_every_update_has_an_outcome(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target) as client:
            good = [
                update("INSERT", table_entry("exacts", exact(bytes([n])), action=action(SEND, b"\1"))) for n in (1, 2)
            ]
            absent = update("DELETE", table_entry("exacts", exact(b"\x09")))
            outcomes = await client.outcomes(good[0], good[0], absent, good[1])
            assert [code for code, _ in outcomes] == ["OK", "ALREADY_EXISTS", "NOT_FOUND", "OK"]
            assert len(await client.read(table_entry("exacts"))) == 2

    asyncio.run(scenario())


def test_full_table_is_reported(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            entries = [table_entry("exacts", exact(bytes([n])), action=action(DROP)) for n in range(5)]
            outcomes = await client.outcomes(*(update("INSERT", entry) for entry in entries))
            assert [code for code, _ in outcomes] == ["OK"] * 4 + ["RESOURCE_EXHAUSTED"]

    asyncio.run(scenario())


def insert(table: str, *match: Field, **fields: Any) -> p4r.Update:
    return update("INSERT", table_entry(table, *match, **fields))


def ternary(value: bytes, mask: bytes) -> Field:
    return Field(field_id=1, ternary=Field.Ternary(value=value, mask=mask))


def lpm(value: bytes, length: int) -> Field:
    return Field(field_id=1, lpm=Field.LPM(value=value, prefix_len=length))


def between(low: bytes, high: bytes) -> Field:
    return Field(field_id=2, range=Field.Range(low=low, high=high))


TAGGED = action(TAG, b"\1")
SENT = action(SEND, b"\1")
WRONG = {
    "unknown table": (
        update("INSERT", p4r.Entity(table_entry=p4r.TableEntry(table_id=0x2000001))),
        ("INVALID_ARGUMENT", "no table has id 0x2000001: one of TestIngress.exacts (0x"),
    ),
    "no table": (update("INSERT", p4r.Entity(table_entry=p4r.TableEntry())), ("INVALID_ARGUMENT", "not set")),
    "unknown field": (insert("exacts", exact(b"\1", 4), action=SENT), ("INVALID_ARGUMENT", "hdr.test.narrow (0x1)")),
    "missing field": (insert("exacts", action=SENT), ("INVALID_ARGUMENT", "needs a value for hdr.test.narrow")),
    "field twice": (insert("exacts", exact(b"\1"), exact(b"\2"), action=SENT), ("INVALID_ARGUMENT", "given twice")),
    "wrong match kind": (insert("exacts", lpm(b"\1", 8), action=SENT), ("INVALID_ARGUMENT", "exact, not lpm")),
    "unset match kind": (insert("exacts", Field(field_id=1), action=SENT), ("INVALID_ARGUMENT", "exact, not unset")),
    "too wide": (
        insert("exacts", exact(b"\1\0"), action=SENT),
        ("INVALID_ARGUMENT", "0x100, which does not fit bit<8>"),
    ),
    "empty value": (insert("exacts", exact(b""), action=SENT), ("INVALID_ARGUMENT", "is an empty string")),
    "no action": (insert("exacts", exact(b"\1")), ("INVALID_ARGUMENT", "needs an action")),
    "action of another table": (
        insert("prefixes", lpm(b"\1\0\0\0", 8), action=SENT),
        ("INVALID_ARGUMENT", "no action of table TestIngress.prefixes has id"),
    ),
    "default-only action": (
        insert("exacts", exact(b"\1"), action=action("NoAction")),
        ("PERMISSION_DENIED", "NoAction may only be the default action"),
    ),
    "missing parameter": (insert("exacts", exact(b"\1"), action=action(SEND)), ("INVALID_ARGUMENT", "value for port")),
    "parameter too wide": (
        insert("exacts", exact(b"\1"), action=action(SEND, b"\2\0")),
        ("INVALID_ARGUMENT", "parameter port of action TestIngress.send is 0x200, which does not fit bit<9>"),
    ),
    "extra parameter": (
        insert("exacts", exact(b"\1"), action=action(SEND, b"\1", b"\1")),
        ("INVALID_ARGUMENT", "no parameter of action TestIngress.send has id 0x2: one of port (0x1)"),
    ),
    "priority on exact": (
        insert("exacts", exact(b"\1"), action=SENT, priority=1),
        ("INVALID_ARGUMENT", "has no priority, not 1"),
    ),
    "no priority on ternary": (insert("patterns", action=TAGGED), ("INVALID_ARGUMENT", "needs a priority above 0")),
    "prefix length 0": (insert("prefixes", lpm(b"\0", 0), action=TAGGED), ("INVALID_ARGUMENT", "1 to 32")),
    "prefix length 33": (insert("prefixes", lpm(b"\0", 33), action=TAGGED), ("INVALID_ARGUMENT", "1 to 32")),
    "bits after prefix": (insert("prefixes", lpm(b"\1\0\0\1", 8), action=TAGGED), ("INVALID_ARGUMENT", "must be 0")),
    "bits outside mask": (
        insert("patterns", ternary(b"\3", b"\1"), action=TAGGED, priority=1),
        ("INVALID_ARGUMENT", "outside the mask must be 0"),
    ),
    "mask 0": (
        insert("patterns", ternary(b"\0", b"\0"), action=TAGGED, priority=1),
        ("INVALID_ARGUMENT", "leave the field out"),
    ),
    "range backwards": (
        insert("patterns", between(b"\5", b"\3"), action=TAGGED, priority=1),
        ("INVALID_ARGUMENT", "low bound 5 above high bound 3"),
    ),
    "range of everything": (
        insert("patterns", between(b"\0", b"\xff"), action=TAGGED, priority=1),
        ("INVALID_ARGUMENT", "leave the field out"),
    ),
    "const entries": (insert("fixed", exact(b"\1"), action=TAGGED), ("PERMISSION_DENIED", "are const in the program")),
    "modified const entry": (
        update("MODIFY", table_entry("fixed", exact(b"\x77"), action=TAGGED)),
        ("PERMISSION_DENIED", "are const in the program"),
    ),
    "const default": (
        update("MODIFY", table_entry("patterns", is_default_action=True, action=TAGGED)),
        ("PERMISSION_DENIED", "is const in the program"),
    ),
    "insert default": (
        insert("exacts", is_default_action=True, action=SENT),
        ("INVALID_ARGUMENT", "can only be MODIFIED"),
    ),
    "table-only default": (
        update("MODIFY", table_entry("exacts", is_default_action=True, action=TAGGED)),
        ("PERMISSION_DENIED", "TestIngress.tag may not be the default action"),
    ),
    "keyless table": (insert("keyless", action=TAGGED), ("INVALID_ARGUMENT", "has no key, so no entries")),
    "default with metadata": (
        update("MODIFY", table_entry("exacts", is_default_action=True, action=SENT, metadata=b"cookie")),
        ("INVALID_ARGUMENT", "default entry of table TestIngress.exacts has neither metadata nor an idle timeout"),
    ),
    "idle timeout": (
        insert("exacts", exact(b"\1"), action=SENT, idle_timeout_ns=1),
        ("INVALID_ARGUMENT", "idle_timeout_ns must be set to 0 for tables which do not support idle timeout"),
    ),
    "meter config": (
        insert("exacts", exact(b"\1"), action=SENT, meter_config=p4r.MeterConfig()),
        ("INVALID_ARGUMENT", "TestIngress.exacts has no direct meter; tables that have one: none"),
    ),
    "modify absent": (
        update("MODIFY", table_entry("exacts", exact(b"\x09"), action=SENT)),
        ("NOT_FOUND", "TestIngress.exacts"),
    ),
    "unset update type": (
        update("UNSPECIFIED", table_entry("exacts", exact(b"\1"), action=SENT)),
        ("INVALID_ARGUMENT", "INSERT, MODIFY or DELETE"),
    ),
    "unset entity": (update("INSERT", p4r.Entity()), ("INVALID_ARGUMENT", "the entity is not set")),
    "meter": (
        update("MODIFY", p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=1))),
        ("INVALID_ARGUMENT", "no meter has id 0x1: there are none"),
    ),
    "action profile": (
        update("INSERT", p4r.Entity(action_profile_member=p4r.ActionProfileMember(member_id=1))),
        ("INVALID_ARGUMENT", "the id of an action profile is not set: there are none"),
    ),
    "extern": (
        update("INSERT", p4r.Entity(extern_entry=p4r.ExternEntry())),
        ("UNIMPLEMENTED", "extern_entry is not offered; one of table_entry, "),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_updates_are_refused_by_name(embedded: Target, name: str) -> None:
    wrong, (code, words) = WRONG[name]

    async def scenario() -> None:
        async with primary(embedded) as client:
            ((found_code, message),) = await client.outcomes(wrong)
            assert found_code == code, message
            assert words in message

    asyncio.run(scenario())


def test_failed_queries_do_not_hide_the_others(embedded: Target) -> None:
    async def scenario() -> None:
        async with embedded.stub() as stub, primary(embedded) as client:
            await client.write(insert("exacts", exact(b"\1"), action=SENT))
            unknown = p4r.Entity(table_entry=p4r.TableEntry(table_id=0x2000001))
            request = p4r.ReadRequest(device_id=1, entities=[unknown, table_entry("exacts")])
            call = stub.Read(request)
            assert len((await call.read()).entities) == 1
            with pytest.raises(
                Exception, match="1 of 2 failed; the first, at index 0: INVALID_ARGUMENT: no table has id"
            ):
                await call.read()

    asyncio.run(scenario())
