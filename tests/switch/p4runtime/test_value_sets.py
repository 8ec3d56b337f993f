"""Value sets of parsers over P4Runtime."""

import asyncio

import pytest
from finsy.proto import p4r

from tests.switch.p4runtime.every_table import number, pipeline, probe
from tests.switch.p4runtime.harness import Target, check_refused, primary, update

pytestmark = pytest.mark.slow


def pairs(*members: tuple[bytes, ...]) -> p4r.Entity:
    def match(values: tuple[bytes, ...]) -> list[p4r.FieldMatch]:
        exact = [p4r.FieldMatch.Exact(value=value) for value in values]
        return [p4r.FieldMatch(field_id=place, exact=one) for place, one in enumerate(exact, 1)]

    of = [p4r.ValueSetMember(match=match(values)) for values in members]
    return p4r.Entity(value_set_entry=p4r.ValueSetEntry(value_set_id=number("pairs"), members=of))


@pytest.mark.root
def test_value_set_is_replaced_and_read(embedded: Target) -> None:  # BMv2 does not offer them
    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            await client.push(pipeline())
            assert await client.read(pairs()) == [pairs()]
            await client.write(update("MODIFY", pairs((b"\5", b"\6"), (b"\xff", b"\1\0"))))
            everything = p4r.Entity(value_set_entry=p4r.ValueSetEntry())
            assert await client.read(everything) == [pairs((b"\5", b"\6"), (b"\xff", b"\1\0"))]
            assert (await probe(embedded, "pairs", a=5, b=6))[0] == 1
            assert (await probe(embedded, "pairs", a=255, b=256))[0] == 1
            assert (await probe(embedded, "pairs", a=5, b=7))[0] == 0
            await client.write(update("MODIFY", pairs()))
            assert (await probe(embedded, "pairs", a=5, b=6))[0] == 0

    asyncio.run(scenario())


WRONG = {
    "inserted": ("INSERT", pairs(), "INVALID_ARGUMENT", "ParserImpl.pairs can only be MODIFIED"),
    "twice": ("MODIFY", pairs((b"\1", b"\1"), (b"\1", b"\1")), "ALREADY_EXISTS", "would have a member twice"),
    "too many": (
        "MODIFY",
        pairs(*((bytes([a]), b"\1") for a in range(4))),
        "RESOURCE_EXHAUSTED",
        "ParserImpl.pairs",
    ),
    "half": ("MODIFY", pairs((b"\1",)), "INVALID_ARGUMENT", "ParserImpl.pairs needs a value for b"),
    "too wide": (
        "MODIFY",
        pairs((b"\1\0", b"\1")),
        "INVALID_ARGUMENT",
        "field a of value set ParserImpl.pairs is 0x100",
    ),
    "unknown field": (
        "MODIFY",
        pairs((b"\1", b"\1", b"\1")),
        "INVALID_ARGUMENT",
        "no field of value set ParserImpl.pairs",
    ),
}


def test_invalid_writes_are_refused_by_name(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            await client.push(pipeline())
            await check_refused(client, WRONG)

    asyncio.run(scenario())
