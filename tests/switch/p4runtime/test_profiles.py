"""Members, groups and action sets over P4Runtime."""

import asyncio

import pytest
from finsy.proto import p4r

from tests.switch.p4runtime.every_table import (
    call,
    entry,
    group,
    member,
    number,
    pipeline,
    probe,
    to_group,
    to_member,
    to_set,
)
from tests.switch.p4runtime.harness import Primary, Target, check_refused, primary, update

SPREAD = (0, 1, 4096, 4097)  # values whose selector hash is 0, 1, 2, 3 modulo 4


def all_members(profile: str = "") -> p4r.Entity:
    profile_id = number(profile) if profile else 0
    return p4r.Entity(action_profile_member=p4r.ActionProfileMember(action_profile_id=profile_id))


def all_groups(profile: str = "") -> p4r.Entity:
    profile_id = number(profile) if profile else 0
    return p4r.Entity(action_profile_group=p4r.ActionProfileGroup(action_profile_id=profile_id))


async def insert(client: Primary, *entities: p4r.Entity) -> None:
    await client.write(*(update("INSERT", entity) for entity in entities))


@pytest.mark.root
def test_members_and_groups_are_written_read_and_used(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target, push=False) as client:
            await client.push(pipeline())
            members = [member(1, b"\x0a"), member(2, b"\x14")]
            shared = member(7, b"\x46", "shared")
            groups = group(5, (1, 1), (2, 1), max_size=4)
            rows = [entry("selected", b"\1", to_group(5)), entry("selected", b"\2", to_member(2))]
            rows.append(entry("indirect", b"\3", to_member(7)))
            await insert(client, *members, shared, groups, *rows)
            assert sorted(map(str, await client.read(all_members()))) == sorted(map(str, [*members, shared]))
            assert await client.read(all_members("shared")) == [shared]
            assert await client.read(member(2, b"\0")) == [members[1]]
            assert await client.read(all_groups()) == [groups]
            wildcard = p4r.Entity(table_entry=p4r.TableEntry(table_id=number("selected")))
            assert sorted(map(str, await client.read(wildcard))) == sorted(map(str, rows[:2]))
            assert {(await probe(target, "selected", a=1, b=b))[0] for b in SPREAD} == {10, 20}
            assert await probe(target, "selected", a=2) == (20, 0, 0)
            if target.embedded:  # BMv2 ends itself if two tables share a profile
                assert await probe(target, "indirect", a=3) == (70, 1, 0)
            await client.write(update("MODIFY", member(2, b"\x1e")))
            await client.write(update("MODIFY", group(5, (2, 1), max_size=4)))
            assert {(await probe(target, "selected", a=1, b=b))[0] for b in SPREAD} == {30}
            await client.write(*(update("DELETE", entity) for entity in (*rows, groups, *members, shared)))
            assert await client.read(all_members(), all_groups()) == []
            assert await probe(target, "selected", a=1) == (0, 0, 0)

    asyncio.run(scenario())


@pytest.mark.root
def test_action_sets_are_read_as_they_were_written(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target, push=False) as client:
            await client.push(pipeline())
            one_shot = entry("selected", b"\1", to_set((b"\x0a", 2), (b"\x14", 1), (b"\x0a", 1)))
            await insert(client, one_shot)
            wildcard = p4r.Entity(table_entry=p4r.TableEntry(table_id=number("selected")))
            assert await client.read(wildcard) == [one_shot]
            assert {(await probe(target, "selected", a=1, b=b))[0] for b in SPREAD} == {10, 20}
            changed = entry("selected", b"\1", to_set((b"\x1e", 1)))
            await client.write(update("MODIFY", changed))
            assert await client.read(wildcard) == [changed]
            assert (await probe(target, "selected", a=1))[0] == 30
            await client.write(update("DELETE", changed))
            assert await client.read(wildcard, all_members(), all_groups()) == []

    asyncio.run(scenario())


def leaving(profile: str) -> p4r.Entity:
    message = p4r.ActionProfileMember(action_profile_id=number(profile), member_id=2, action=call("leave"))
    return p4r.Entity(action_profile_member=message)


def watched() -> p4r.Entity:
    entity = group(2, (1, 1))
    entity.action_profile_group.members[0].watch_port = b"\1"
    return entity


WRONG = {
    "member again": ("INSERT", member(1, b"\1"), "ALREADY_EXISTS", "Tables.chosen has a member 1 already"),
    "member 0": (
        "INSERT",
        member(0, b"\1"),
        "INVALID_ARGUMENT",
        "id of a member of action profile Tables.chosen is not",
    ),
    "foreign action": (
        "INSERT",
        leaving("chosen"),
        "INVALID_ARGUMENT",
        "no action of action profile Tables.chosen has id",
    ),
    "member in use": ("DELETE", member(1, b"\1"), "FAILED_PRECONDITION", "is used by groups or entries"),
    "group in use": ("DELETE", group(1), "FAILED_PRECONDITION", "group 1 of action profile Tables.chosen is used"),
    "absent member": ("MODIFY", member(3, b"\1"), "NOT_FOUND", "Tables.chosen has no member 3; it has 1"),
    "absent group": ("DELETE", group(3), "NOT_FOUND", "Tables.chosen has no group 3; it has 1"),
    "absent group member": ("INSERT", group(2, (3, 1)), "NOT_FOUND", "no member 3; it has 1"),
    "group again": ("INSERT", group(1), "ALREADY_EXISTS", "Tables.chosen has a group 1 already"),
    "weight 0": (
        "INSERT",
        group(2, (1, 0)),
        "INVALID_ARGUMENT",
        "weight of a member of Tables.chosen must be 1 or more, got 0",
    ),
    "member twice": ("INSERT", group(2, (1, 1), (1, 1)), "INVALID_ARGUMENT", "has a member twice"),
    "max_size beyond": ("INSERT", group(2, max_size=9), "INVALID_ARGUMENT", "must be at most 8, got 9"),
    "beyond max_size": ("INSERT", group(2, (1, 3), max_size=2), "RESOURCE_EXHAUSTED", "must be at most 2, got 3"),
    "beyond all groups": ("INSERT", group(2, (1, 9)), "RESOURCE_EXHAUSTED", "must be at most 8, got 9"),
    "other max_size": (
        "MODIFY",
        group(1, (1, 1), max_size=2),
        "INVALID_ARGUMENT",
        "max_size of group 1 must stay 0, got 2",
    ),
    "watched port": ("INSERT", watched(), "UNIMPLEMENTED", "a watched port of a member of Tables.chosen"),
    "absent reference": ("INSERT", entry("selected", b"\7", to_group(7)), "NOT_FOUND", "no group 7; it has 1"),
    "direct action": (
        "INSERT",
        entry("selected", b"\7", p4r.TableAction(action=call("answer", b"\1"))),
        "INVALID_ARGUMENT",
        "takes one of action_profile_member_id, action_profile_group_id, action_profile_action_set, not action",
    ),
    "group of no selector": (
        "INSERT",
        entry("indirect", b"\7", to_group(1)),
        "INVALID_ARGUMENT",
        "table Tables.indirect takes one of action_profile_member_id, not action_profile_group_id",
    ),
    "action set beside members": (
        "INSERT",
        entry("selected", b"\7", to_set((b"\1", 1))),
        "INVALID_ARGUMENT",
        "no action sets",
    ),
    "large action set": (
        "INSERT",
        entry("selected", b"\7", to_set((b"\1", 9))),
        "INVALID_ARGUMENT",
        "must be at most 8, got 9",
    ),
    "random": (
        "INSERT",
        entry("selected", b"\7", to_set((b"\1", 1), action_selection_mode=p4r.ActionProfileActionSet.RANDOM)),
        "UNIMPLEMENTED",
        "RANDOM selection",
    ),
    "default": (
        "MODIFY",
        p4r.Entity(
            table_entry=p4r.TableEntry(table_id=number("selected"), is_default_action=True, action=to_member(1))
        ),
        "PERMISSION_DENIED",
        "the default action of table Tables.selected is to do nothing: it has an action profile",
    ),
}


def test_invalid_writes_are_refused_by_name(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            await client.push(pipeline())
            await insert(client, member(1, b"\1"), group(1, (1, 1)), entry("selected", b"\1", to_group(1)))
            await check_refused(client, WRONG)

    asyncio.run(scenario())


def test_all_groups_together_have_the_selectors_size(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded, push=False) as client:
            await client.push(pipeline())
            rows = [entry("selected", bytes([a]), to_set((b"\1", 8))) for a in range(4)]
            await insert(client, *rows)
            too_many = "all groups of Tables.chosen must have at most 32 weights, got 33"
            more = update("INSERT", entry("selected", b"\7", to_set((b"\1", 1))))
            assert await client.outcomes(more) == [("RESOURCE_EXHAUSTED", too_many)]
            await client.write(update("MODIFY", entry("selected", b"\0", to_set((b"\1", 7)))))
            await client.write(more)
            grown = update("MODIFY", entry("selected", b"\0", to_set((b"\1", 8))))
            assert await client.outcomes(grown) == [("RESOURCE_EXHAUSTED", too_many)]

    asyncio.run(scenario())
