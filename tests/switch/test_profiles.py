"""Action profiles and selectors: members, groups, action sets, what must stay, and the choice of a member."""

import time

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import EntryExists, EntryNotFound, InvalidEntry, StillUsed, SwitchError, TableFull
from kofn_switch.state.entries import (
    ActionSet,
    Entry,
    GroupMember,
    GroupRef,
    Lpm,
    Member,
    MemberGroup,
    MemberRef,
    WeightedAction,
)
from tests.switch.every_table import NOTHING, entry, exact, probe


def member(number: int, result: int, profile: str = "chosen") -> Member:
    return Member(profile=f"Tables.{profile}", id=number, action="Tables.answer", parameters=(result,))


def group(number: int, *members: int | tuple[int, int], max_size: int = 0) -> MemberGroup:
    pairs = [one if isinstance(one, tuple) else (one, 1) for one in members]
    of = tuple(GroupMember(member=number, weight=weight) for number, weight in pairs)
    return MemberGroup(profile="Tables.chosen", id=number, members=of, max_size=max_size)


def action_set(*results: int) -> ActionSet:
    return ActionSet(actions=tuple(WeightedAction(action="Tables.answer", parameters=(one,)) for one in results))


def crc16(data: bytes) -> int:
    """Return CRC-16/ARC."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


def chosen(b: int, c: int, size: int) -> int:
    return crc16(b.to_bytes(2, "big") + c.to_bytes(4, "big")) % size


# Action profiles


def test_tables_share_the_members_of_a_profile(engine: Engine) -> None:
    wide = Member(profile="Tables.shared", id=9, action="Tables.answer_wide", parameters=(1 << 127 | 1, 5))
    engine.insert_member(member(7, 3, "shared"))
    engine.insert_member(wide)
    engine.insert(entry("indirect", 1, MemberRef(member=7)))
    engine.insert(entry("indirect", 2, MemberRef(member=9)))
    engine.insert(Entry(table="Tables.indirect_too", key=(Lpm(value=0, prefix_length=0),), via=MemberRef(member=7)))
    assert probe(engine, "indirect", a=1) == (3, 1, 0)
    assert probe(engine, "indirect", a=2) == (5, 2, 0)
    assert probe(engine, "indirect", a=3) == (NOTHING, 0, 0)
    assert probe(engine, "indirect_too") == (3, 1, 0)
    engine.modify_member(member(7, 4, "shared"))
    assert probe(engine, "indirect", a=1) == (4, 1, 0)
    assert probe(engine, "indirect_too") == (4, 1, 0)
    engine.modify(entry("indirect", 1, MemberRef(member=9)))
    assert probe(engine, "indirect", a=1) == (5, 2, 0)
    assert engine.entry("Tables.indirect", exact(1)).via == MemberRef(member=9)
    assert engine.members("Tables.shared") == [member(7, 4, "shared"), wide]
    assert engine.default("Tables.indirect") is None


def test_exit_works_in_a_members_action(engine: Engine) -> None:
    engine.insert_member(Member(profile="Tables.shared", id=1, action="Tables.leave"))
    engine.insert(Entry(table="Tables.indirect_too", key=(Lpm(value=0, prefix_length=0),), via=MemberRef(member=1)))
    assert probe(engine, "indirect_too") == (NOTHING, 0, 0), (
        "statements after the exit must not run, nor those of a hit"
    )


def test_used_members_cannot_be_deleted(engine: Engine) -> None:
    engine.insert_member(member(1, 1))
    engine.insert_member_group(group(5, 1))
    with pytest.raises(StillUsed, match=r"member 1 of action profile Tables.chosen is used by groups or entries"):
        engine.delete_member("Tables.chosen", 1)
    with pytest.raises(EntryNotFound, match="no member 2; it has 1"):
        engine.modify_member_group(group(5, 2))
    with pytest.raises(StillUsed):
        engine.delete_member("Tables.chosen", 1)
    engine.insert(entry("selected", 1, GroupRef(group=5)))
    with pytest.raises(StillUsed, match=r"group 5 of action profile Tables.chosen is used by entries"):
        engine.delete_member_group("Tables.chosen", 5)
    engine.modify(entry("selected", 1, MemberRef(member=1)))
    engine.delete_member_group("Tables.chosen", 5)
    with pytest.raises(StillUsed):
        engine.delete_member("Tables.chosen", 1)
    engine.delete("Tables.selected", exact(1))
    engine.delete_member("Tables.chosen", 1)
    assert engine.members("Tables.chosen") == []
    assert engine.member_groups("Tables.chosen") == []


@pytest.mark.parametrize("profile", ["shared", "chosen"])
def test_profile_holds_its_size(engine: Engine, profile: str) -> None:
    size = {"shared": 4, "chosen": 32}[profile]
    for number in range(1, size + 1):
        engine.insert_member(member(number, number, profile))
    with pytest.raises(TableFull, match=f"Tables.{profile} is full: {size} members"):
        engine.insert_member(member(100, 1, profile))
    engine.delete_member(f"Tables.{profile}", 2)
    engine.insert_member(member(100, 1, profile))


# Selectors


def test_hash_chooses_from_a_group_by_weight(engine: Engine) -> None:
    for number, result in ((4, 40), (3, 30), (2, 20)):  # in the order of their places, not of their ids
        engine.insert_member(member(number, result))
    engine.insert_member_group(group(1, 2, (4, 3), 3))
    engine.insert(entry("selected", 1, GroupRef(group=1)))
    weighted = [40, 40, 40, 30, 20]
    for b in range(40):
        assert probe(engine, "selected", a=1, b=b, c=b * 77)[0] == weighted[chosen(b, b * 77, 5)]
    engine.modify_member_group(group(1, 3, 2))
    for b in range(40):
        assert probe(engine, "selected", a=1, b=b)[0] == [30, 20][chosen(b, 0, 2)]
    assert engine.member_groups("Tables.chosen") == [group(1, 3, 2)]
    assert engine.profile_use("Tables.chosen") == (2, 2)
    engine.delete_member("Tables.chosen", 4)


def test_the_members_of_thousands_of_groups_are_counted_at_once(engine: Engine) -> None:
    """Each group that a controller writes asks for the count."""
    groups = 2000
    for number in (1, 2):
        engine.insert_member(member(number, number))
    for number in range(1, groups + 1):
        engine.insert_member_group(group(number, 1, (2, 3)))
    before = time.process_time()
    assert {engine.profile_use("Tables.chosen") for _ in range(20_000)} == {(2 * groups, 4 * groups)}
    assert time.process_time() - before < 3
    for number in range(1, groups + 1):
        engine.delete_member_group("Tables.chosen", number)
    assert engine.profile_use("Tables.chosen") == (0, 0)


def test_empty_group_does_nothing(engine: Engine) -> None:
    engine.insert_member_group(group(1))
    engine.insert(entry("selected", 1, GroupRef(group=1)))
    assert probe(engine, "selected", a=1) == (NOTHING, 0, 0)


def test_action_set_has_its_own_members(engine: Engine) -> None:
    engine.insert(entry("selected", 1, action_set(10, 20, 20)))
    engine.insert(entry("selected", 2, action_set(30)))
    for b in range(20):
        assert probe(engine, "selected", a=1, b=b)[0] == [10, 20, 20][chosen(b, 0, 3)]
    assert probe(engine, "selected", a=2)[0] == 30
    assert engine.profile_use("Tables.chosen") == (4, 4)
    engine.modify(entry("selected", 1, action_set(50)))
    assert probe(engine, "selected", a=1)[0] == 50
    assert engine.members("Tables.chosen") == []
    with pytest.raises(InvalidEntry, match=r"entries of action profile Tables.chosen have action sets"):
        engine.insert_member(member(1, 1))
    for a in (1, 2):
        engine.delete("Tables.selected", exact(a))
    assert engine.profile_use("Tables.chosen") == (0, 0)
    for _ in range(3):  # the members of deleted entries make room
        engine.insert(entry("selected", 1, action_set(*range(32))))
        engine.delete("Tables.selected", exact(1))
    engine.insert(entry("selected", 1, action_set(*range(20))))
    with pytest.raises(TableFull, match=r"Tables.chosen is full: 32 members"):
        engine.insert(entry("selected", 2, action_set(*range(13))))
    engine.modify(entry("selected", 1, action_set(*range(30))))  # the replaced members make room
    engine.delete("Tables.selected", exact(1))
    engine.insert_member(member(1, 1))
    with pytest.raises(InvalidEntry, match="has members of its own: no action sets beside them"):
        engine.insert(entry("selected", 1, action_set(1)))


BAD_MEMBERS = [
    (member(0, 1), InvalidEntry, "member ids of action profile Tables.chosen start at 1; 0 is none"),
    (member(1, 1), EntryExists, "Tables.chosen has a member 1 already"),
    (member(2, 256), InvalidEntry, r"parameter result of action Tables.answer is 0x100; bit<8>"),
    (member(2, 1, "other"), InvalidEntry, "no action profile Tables.other; it has Tables.shared, Tables.chosen"),
    (
        Member(profile="Tables.chosen", id=2, action="Tables.leave"),
        InvalidEntry,
        "Tables.chosen has no action Tables.leave; it has Tables.answer, Tables.answer_wide",
    ),
]
BAD_GROUPS = [
    (group(0), InvalidEntry, "group ids of action profile Tables.chosen start at 1"),
    (group(1, 1), EntryExists, "Tables.chosen has a group 1 already"),
    (group(2, 1, 1), InvalidEntry, "has a member twice"),
    (group(2, 1, 2), EntryNotFound, "Tables.chosen has no member 2; it has 1"),
    (group(2, (1, 65537)), TableFull, "weights of a group of Tables.chosen are 65536 together at most"),
    (group(2, (1, 0)), InvalidEntry, "a weight must be 1 or more, got 0"),
    (MemberGroup(profile="Tables.shared", id=1, members=()), InvalidEntry, "Tables.shared has no selector"),
]
BAD_ENTRIES = [
    (entry("selected", 1), InvalidEntry, "an entry needs a member, group or set"),
    (entry("selected", 1, MemberRef(member=3)), EntryNotFound, "no member 3; it has 1"),
    (entry("selected", 1, GroupRef(group=3)), EntryNotFound, "no group 3; it has 1"),
    (entry("indirect", 1, GroupRef(group=1)), InvalidEntry, "Tables.shared has no selector: group 1 is not possible"),
    (entry("indirect", 1, action_set(1)), InvalidEntry, "an action set is not possible"),
    (entry("by_part", 1, MemberRef(member=1)), InvalidEntry, "Tables.by_part has no action profile"),
]


@pytest.mark.parametrize(("bad", "error", "message"), [*BAD_MEMBERS, *BAD_GROUPS, *BAD_ENTRIES])
def test_refused_writes_change_nothing(
    engine: Engine, bad: Member | MemberGroup | Entry, error: type[SwitchError], message: str
) -> None:
    engine.insert_member(member(1, 1))
    engine.insert_member_group(group(1, 1))
    before = engine.members("Tables.chosen"), engine.member_groups("Tables.chosen")
    with pytest.raises(error, match=message):
        match bad:
            case Member():
                engine.insert_member(bad)
            case MemberGroup():
                engine.insert_member_group(bad)
            case Entry():
                engine.insert(bad)
    assert (engine.members("Tables.chosen"), engine.member_groups("Tables.chosen")) == before
    engine.delete_member_group("Tables.chosen", 1)
    engine.delete_member("Tables.chosen", 1)


def test_fixed_properties_of_groups_and_indirect_tables_stay(engine: Engine) -> None:
    engine.insert_member_group(group(1, max_size=3))
    with pytest.raises(InvalidEntry, match="max_size of group 1 must stay 3, got 4"):
        engine.modify_member_group(group(1, max_size=4))
    with pytest.raises(EntryNotFound, match="no group 2; it has 1"):
        engine.modify_member_group(group(2))
    with pytest.raises(InvalidEntry, match=r"default of table Tables.indirect is to do nothing"):
        engine.set_default("Tables.indirect", "Tables.answer", (1,))
