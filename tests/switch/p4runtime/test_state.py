"""Counters, registers and multicast groups, written by the control plane and by packets."""

import asyncio
import time
from typing import Any

import finsy as fy
import pytest
from finsy.proto import p4d, p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.groups import Groups
from kofn_switch.p4runtime.refusal import Refused
from kofn_switch.p4runtime.replicas import decode_replicas
from kofn_switch.state.entries import CloneSession, Replica
from tests.switch.p4runtime.harness import (
    PROGRAM,
    Target,
    action,
    exact,
    frame,
    object_id,
    primary,
    table_entry,
    update,
)
from tests.targets import read
from tests.waiting import PATIENCE_S

SEEN, CELLS = "TestIngress.seen", "TestIngress.cells"
COUNT, FLOOD, DIGEST, CLONE = 4, 2, 3, 5


async def eventually(read: Any, wanted: Any) -> None:
    """Read until the answer is the wanted one; packets are counted some time after they are sent."""
    async with asyncio.timeout(PATIENCE_S):
        while (found := await read()) != wanted:
            print("not yet:", found)
            await asyncio.sleep(0.02)


def counter(index: int | None = None, **data: int) -> p4r.Entity:
    entry = p4r.CounterEntry(counter_id=object_id(SEEN))
    if index is not None:
        entry.index.index = index
    if data:
        entry.data.CopyFrom(p4r.CounterData(**data))
    return p4r.Entity(counter_entry=entry)


def register(index: int | None = None, value: bytes | None = None) -> p4r.Entity:
    entry = p4r.RegisterEntry(register_id=object_id(CELLS))
    if index is not None:
        entry.index.index = index
    if value is not None:
        entry.data.bitstring = value
    return p4r.Entity(register_entry=entry)


def group(number: int, *replicas: tuple[int, int], **fields: Any) -> p4r.Entity:
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, **fields)
    for port, instance in replicas:
        entry.replicas.add(egress_port=port, instance=instance)
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=entry))


def session(number: int, *replicas: tuple[int, int], **fields: Any) -> p4r.Entity:
    entry = p4r.CloneSessionEntry(session_id=number, **fields)
    for port, instance in replicas:
        entry.replicas.add(egress_port=port, instance=instance)
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(clone_session_entry=entry))


def replicas(entity: p4r.Entity) -> set[tuple[int, int]]:
    entry = entity.packet_replication_engine_entry
    found = entry.multicast_group_entry if entry.HasField("multicast_group_entry") else entry.clone_session_entry
    return {(replica.egress_port, replica.instance) for replica in found.replicas}


def test_counters_are_set_and_read_singly_and_together(target: Target) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            data = fy.P4CounterData(byte_count=700, packet_count=7)
            await switch.modify([fy.P4CounterEntry("seen", index=3, data=data)])
            (one,) = await read(switch, fy.P4CounterEntry("seen", index=3))
            assert (one.packet_count, one.byte_count) == (7, 700)
            cells = await read(switch, fy.P4CounterEntry("seen"))
            assert [(cell.index, cell.packet_count) for cell in cells] == [(i, 7 if i == 3 else 0) for i in range(8)]

    asyncio.run(scenario())


@pytest.mark.root
def test_packets_are_counted(target: Target) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            for _ in range(3):
                target.send(1, frame(COUNT, value=5))

            async def seen() -> tuple[int, int]:
                (cell,) = await read(switch, fy.P4CounterEntry("seen", index=5))
                return cell.packet_count, cell.byte_count

            await eventually(seen, (3, 3 * len(frame(COUNT))))

    asyncio.run(scenario())


@pytest.mark.root
def test_hits_are_counted_with_the_entry(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target) as client:
            entry = table_entry("exacts", exact(b"\7"), action=action("TestIngress.send", b"\2"))
            await client.write(update("INSERT", entry))
            query = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=entry.table_entry))
            query.direct_counter_entry.table_entry.ClearField("action")
            target.send(1, frame(0, narrow=7))
            assert await target.receive(2) == frame(0, narrow=7)

            async def hits() -> list[int]:
                found = await client.read(query)
                return [entity.direct_counter_entry.data.packet_count for entity in found]

            await eventually(hits, [1])
            reset = p4r.Entity()
            reset.CopyFrom(query)
            reset.direct_counter_entry.data.packet_count = 100
            await client.write(update("MODIFY", reset))
            assert await hits() == [100]
            entry.table_entry.ClearField("action")
            entry.table_entry.counter_data.SetInParent()
            (with_counter,) = await client.read(entry)
            assert with_counter.table_entry.counter_data.packet_count == 100

    asyncio.run(scenario())


def test_misses_are_counted_with_the_default_entry(embedded: Target) -> None:  # BMv2 does not offer it
    def default(**fields: Any) -> p4r.Entity:
        return table_entry("exacts", is_default_action=True, **fields)

    def misses(count: p4r.CounterData | None = None) -> p4r.Entity:
        return p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=default().table_entry, data=count))

    async def scenario() -> None:
        async with primary(embedded) as client:
            await client.write(update("MODIFY", misses(p4r.CounterData(packet_count=5, byte_count=6))))
            (entity,) = await client.read(misses())
            assert entity.direct_counter_entry.data == p4r.CounterData(packet_count=5, byte_count=6)
            counted = p4r.CounterData(packet_count=7)
            drop = action("TestIngress.drop")
            await client.write(update("MODIFY", default(action=drop, counter_data=counted)))
            assert await client.read(default(counter_data=p4r.CounterData())) == [
                default(action=drop, counter_data=counted)
            ]

    asyncio.run(scenario())


@pytest.mark.root
def test_registers_are_set_and_read(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            await client.write(update("MODIFY", register(value=b"\1\0")))
            await client.write(update("MODIFY", register(2, b"\0\xff\xff\xff\xff")))
            cells = [entity.register_entry.data.bitstring for entity in await client.read(register())]
            assert cells == [b"\1\0"] * 2 + [b"\xff\xff\xff\xff"] + [b"\1\0"] * 13
            embedded.send(1, frame(COUNT, value=2))

            async def cell() -> bytes:
                (found,) = await client.read(register(2))
                return found.register_entry.data.bitstring

            await eventually(cell, bytes([len(frame(COUNT))]))

    asyncio.run(scenario())


def test_groups_are_created_changed_and_removed(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target) as client:
            made = group(5, (1, 0), (2, 7))
            assert await client.outcomes(update("INSERT", made), update("INSERT", group(6, (3, 0)))) == []
            (found,) = await client.read(group(5))
            assert replicas(found) == replicas(made)
            assert len(await client.read(group(0))) == 2
            changed = group(5, (3, 1))
            await client.write(update("MODIFY", changed), update("DELETE", group(6)))
            assert await client.read(group(0)) == [changed]

    asyncio.run(scenario())


def test_sessions_are_created_changed_and_removed(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target) as client:
            made = session(5, (1, 0), (2, 7))
            assert await client.outcomes(update("INSERT", made), update("INSERT", session(6, (3, 0)))) == []
            assert [code for code, _ in await client.outcomes(update("INSERT", made))] == ["ALREADY_EXISTS"]
            (found,) = await client.read(session(5))
            assert replicas(found) == replicas(made)
            changed = session(5, (3, 1))
            await client.write(update("MODIFY", changed), update("DELETE", session(6)))
            assert await client.read(session(0)) == [changed]

    asyncio.run(scenario())


def test_controllers_do_not_see_what_simple_switch_cli_made() -> None:
    engine = Engine({})
    engine.load(PROGRAM.read_bytes())
    engine.set_group(5, [Replica(port=1)], lasting=True)
    engine.set_session(7, CloneSession(group=5), lasting=True)
    groups = Groups(engine)
    for own, made in ((group(0), group(5, (2, 1))), (session(0), session(7, (3, 0)))):
        everything, wanted = own.packet_replication_engine_entry, made.packet_replication_engine_entry
        assert list(groups.read(everything)) == []
        with pytest.raises(Refused, match="there is no"):
            groups.write(p4r.Update.DELETE, wanted)
        groups.write(p4r.Update.INSERT, wanted)
        assert list(groups.read(everything)) == [wanted]


def test_a_group_of_thousands_of_replicas_is_decoded_at_once() -> None:
    messages = [p4r.Replica(egress_port=port, instance=instance) for port in range(500) for instance in range(20)]
    before = time.process_time()
    assert len(decode_replicas("multicast group 1", messages)) == len(messages)
    assert time.process_time() - before < 2


@pytest.mark.root
def test_session_copies_and_truncates_clones(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            cut = frame(CLONE, value=5)[:17]
            await client.write(update("INSERT", session(5, (2, 0), (3, 4), packet_length_bytes=17)))
            embedded.send(1, frame(CLONE, value=6))  # there is no session 6
            embedded.send(1, frame(CLONE, value=5))
            assert await embedded.receive(2) == cut
            assert await embedded.receive(3) == cut

            async def logged() -> list[str]:
                lines = embedded.log.read_text().splitlines()
                return [line.rpartition("] ")[2] for line in lines if "cloned to" in line]

            await eventually(logged, ["cloned to session 6", "cloned to session 5"])

    asyncio.run(scenario())


@pytest.mark.root
def test_group_multiplies_packets(target: Target) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            await switch.insert([fy.P4MulticastGroupEntry(9, replicas=[1, 2, 3])])
            target.send(1, frame(FLOOD, value=9))
            for port in (1, 2, 3):
                assert await target.receive(port) == frame(FLOOD, value=9)

    asyncio.run(scenario())


def test_controller_can_clear_the_switch(target: Target) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            match = fy.P4TableMatch({"hdr.test.narrow": 7})
            await switch.insert([fy.P4TableEntry("exacts", match=match, action=fy.P4TableAction("drop"))])
            await switch.delete_all()
            assert await read(switch, fy.P4TableEntry("exacts")) == []

    asyncio.run(scenario())


WRONG = {
    "counter index too high": (
        counter(8, packet_count=1),
        "OUT_OF_RANGE",
        f"the index of counter {SEEN} must be 0 to 7, got 8",
    ),
    "counter index negative": (counter(-1, packet_count=1), "INVALID_ARGUMENT", "must be 0 to 7, got -1"),
    "counter negative": (counter(0, packet_count=-1), "INVALID_ARGUMENT", "must be 0 or more"),
    "unknown counter": (
        p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=9)),
        "INVALID_ARGUMENT",
        f"one of {SEEN} (0x",
    ),
    "register without data": (register(0), "INVALID_ARGUMENT", f"register {CELLS} needs data of kind bitstring"),
    "register too wide": (register(0, b"\1\0\0\0\0"), "INVALID_ARGUMENT", "does not fit bit<32>"),
    "register of a struct": (
        p4r.Entity(
            register_entry=p4r.RegisterEntry(register_id=object_id(CELLS), data=p4d.P4Data(tuple=p4d.P4StructLike()))
        ),
        "INVALID_ARGUMENT",
        "kind bitstring, not tuple",
    ),
    "absent group": (group(77, (1, 0)), "NOT_FOUND", "there is no multicast group 77; there are []"),
    "group 0": (group(0, (1, 0)), "INVALID_ARGUMENT", "multicast group must be 1 to 65535, got 0"),
    "absent session": (session(77, (1, 0)), "NOT_FOUND", "there is no clone session 77; there are []"),
    "session 0": (session(0, (1, 0)), "INVALID_ARGUMENT", "clone session must be 1 to 32767, got 0"),
    "direct counter of a table without one": (
        p4r.Entity(
            direct_counter_entry=p4r.DirectCounterEntry(
                table_entry=table_entry("prefixes").table_entry, data=p4r.CounterData()
            )
        ),
        "INVALID_ARGUMENT",
        "TestIngress.prefixes has no direct counter; tables that have one: TestIngress.exacts",
    ),
    "unknown digest": (p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=5)), "NOT_FOUND", "one of sighting_t (0x"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_modifications_are_refused_by_name(embedded: Target, name: str) -> None:
    entity, code, words = WRONG[name]

    async def scenario() -> None:
        async with primary(embedded) as client:
            ((found_code, message),) = await client.outcomes(update("MODIFY", entity))
            assert found_code == code, message
            assert words in message

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("entity", "words"),
    [
        (group(5, (600, 0)), "a port of multicast group 5 is 0x258, which does not fit bit<9>"),
        (group(5, (1, 0), (1, 0)), "has port 1 instance 0 twice"),
        (group(5, (1, 1 << 16)), "instance must be 0 to 65535, got 65536"),
        (group(70000, (1, 0)), "multicast group must be 1 to 65535, got 70000"),
        (group(5, metadata=b"x"), "would be lost"),
        (session(5, (600, 0)), "a port of clone session 5 is 0x258, which does not fit bit<9>"),
        (session(5, (1, 0), (1, 0)), "clone session 5 has port 1 instance 0 twice"),
        (session(1 << 15), "clone session must be 1 to 32767, got 32768"),
        (session(5, class_of_service=1), "clone session 5: class of service 1 is not offered; 0 is"),
        (session(5, packet_length_bytes=-1), "packet_length_bytes is -1; it must be 0 (all) or more"),
        (counter(0, packet_count=1), "can only be MODIFIED"),
        (register(0, b"\1"), "can only be MODIFIED"),
    ],
)
def test_wrong_insertions_are_refused_by_name(embedded: Target, entity: p4r.Entity, words: str) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            ((_, message),) = await client.outcomes(update("INSERT", entity))
            assert words in message

    asyncio.run(scenario())
