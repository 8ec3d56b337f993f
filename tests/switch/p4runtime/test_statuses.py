"""Each switch answers every request as the table of docs/reference/p4runtime.md says."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r

from tests.switch.p4runtime.harness import Primary, Target, action, batch_errors, exact, object_id, primary, table_entry
from tests.switch.p4runtime.harness import update as updated

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "p4runtime.md"
ROW = re.compile(r"^\| ([a-z].*?) \| ([A-Z_]+) \| ([A-Z_]+) \|$", re.MULTILINE)
TABLE = {name: {"embedded": ours, "bmv2": theirs} for name, ours, theirs in ROW.findall(DOCUMENT.read_text())}
FULL_AT = 16  # the capacity of a table of size 4, which is rounded up
SEND, TAG = action("TestIngress.send", b"\1"), action("TestIngress.tag", b"\1")
ABSENT = 0xFFFFFF  # with the kind of object as its top byte


def absent(kind: int) -> int:
    return kind << 24 | ABSENT


def group(number: int, *replicas: tuple[int, int]) -> p4r.Entity:
    listed = [p4r.Replica(egress_port=port, instance=instance) for port, instance in replicas]
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=listed)
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=entry))


def counter(counter_id: int, index: int) -> p4r.Entity:
    data = p4r.CounterData(packet_count=1)
    return p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=counter_id, index=p4r.Index(index=index), data=data))


def patterns(*match: p4r.FieldMatch) -> p4r.Entity:
    return table_entry("patterns", *match, action=TAG, priority=1)


def ternary(value: bytes, mask: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=1, ternary=p4r.FieldMatch.Ternary(value=value, mask=mask))


def prefix(value: bytes, length: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=1, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=length))


EVERYTHING = p4r.FieldMatch(field_id=2, range=p4r.FieldMatch.Range(low=b"\0", high=b"\xff"))
UNKNOWN_TABLE = p4r.Entity(table_entry=p4r.TableEntry(table_id=absent(2), action=SEND))
UNKNOWN_ACTION = p4r.TableAction(action=p4r.Action(action_id=absent(1)))
SEEN, SIGHTING = object_id("TestIngress.seen"), object_id("sighting_t")

REQUESTS: dict[str, tuple[str, p4r.Entity]] = {
    "table of an unknown id": ("INSERT", UNKNOWN_TABLE),
    "counter of an unknown id": ("MODIFY", counter(absent(0x12), 0)),
    "digest of an unknown id": ("INSERT", p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=absent(0x17)))),
    "match value too wide": ("INSERT", table_entry("exacts", exact(b"\1\0"), action=SEND)),
    "match value empty": ("INSERT", table_entry("exacts", exact(b""), action=SEND)),
    "parameter too wide": (
        "INSERT",
        table_entry("exacts", exact(b"\1"), action=action("TestIngress.send", b"\xff\xff")),
    ),
    "parameter empty": ("INSERT", table_entry("exacts", exact(b"\2"), action=action("TestIngress.send", b""))),
    "parameter missing": ("INSERT", table_entry("exacts", exact(b"\3"), action=action("TestIngress.send"))),
    "action of an unknown id": ("INSERT", table_entry("exacts", exact(b"\3"), action=UNKNOWN_ACTION)),
    "no action": ("INSERT", table_entry("exacts", exact(b"\3"))),
    "prefix of length 0": ("INSERT", table_entry("prefixes", prefix(b"\0", 0), action=TAG)),
    "range of all values": ("INSERT", patterns(EVERYTHING)),
    "mask 0": ("INSERT", patterns(ternary(b"\0", b"\0"))),
    "bits outside the mask": ("INSERT", patterns(ternary(b"\3", b"\1"))),
    "entry in a table with const entries": ("INSERT", table_entry("fixed", exact(b"\7"), action=TAG)),
    "const default action": ("MODIFY", table_entry("patterns", is_default_action=True, action=TAG)),
    "insertion of a default action": ("INSERT", table_entry("exacts", is_default_action=True, action=SEND)),
    "modification of a missing entry": ("MODIFY", table_entry("exacts", exact(b"\x77"), action=SEND)),
    "deletion of a missing entry": ("DELETE", table_entry("exacts", exact(b"\x77"))),
    "counter index negative": ("MODIFY", counter(SEEN, -1)),
    "counter index too high": ("MODIFY", counter(SEEN, 1 << 20)),
    "multicast group 0": ("INSERT", group(0, (1, 0))),
    "multicast port too wide": ("INSERT", group(8, (600, 0))),
    "multicast group with one replica twice": ("INSERT", group(9, (1, 1), (1, 1))),
    "modification of a missing multicast group": ("MODIFY", group(77, (1, 1))),
    "modification of a disabled digest": ("MODIFY", p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=SIGHTING))),
    "no entity": ("INSERT", p4r.Entity()),
    "no type of update": ("UNSPECIFIED", table_entry("exacts", exact(b"\1"), action=SEND)),
}


def fill() -> Iterator[p4r.Entity]:
    yield from (table_entry("exacts", exact(bytes([100 + number])), action=SEND) for number in range(FULL_AT))


async def code(client: Primary, kind: str, entity: p4r.Entity) -> str:
    try:
        await client.write(updated(kind, entity))
    except grpc.aio.AioRpcError as error:
        return batch_errors(error)[0][0]
    return "OK"


def test_each_switch_answers_as_documented(target: Target) -> None:
    async def scenario() -> dict[str, str]:
        async with primary(target) as client:
            said = {name: await code(client, *request) for name, request in REQUESTS.items()}
            for entity in fill():
                said["entry in a full table"] = await code(client, "INSERT", entity)
            await client.push()  # restores the state for the next test
        return said

    assert asyncio.run(scenario()) == {name: codes[target.name] for name, codes in TABLE.items()}


def test_failed_read_is_unknown_with_the_code_of_each_query(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.read(table_entry("exacts"), UNKNOWN_TABLE)
            assert refused.value.code() is grpc.StatusCode.UNKNOWN
            assert [name for name, _ in batch_errors(refused.value)] == ["OK", "INVALID_ARGUMENT"]

    asyncio.run(scenario())
