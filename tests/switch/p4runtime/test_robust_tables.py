"""Any write or read of members, groups, meters, value sets and their entries is carried out or refused."""

from typing import Any

import pytest
from finsy.proto import p4r
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import SwitchError
from kofn_switch.p4runtime.pipeline import Pipeline
from tests.switch.p4runtime.every_table import (
    NUMBERS,
    call,
    entry,
    group,
    member,
    number,
    pipeline,
    to_group,
    to_member,
)

pytestmark = pytest.mark.slow

NAMES = ["chosen", "shared", "selected", "indirect", "metered", "aged", "cell_meter", "pairs"]
ids = st.sampled_from([0, 1, *map(number, NAMES)])
tables = st.sampled_from([number(name) for name in ("selected", "indirect", "metered", "aged")])
profiles = st.sampled_from([number("chosen"), number("shared")]) | ids
small = st.integers(0, 4)
wide = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 3)
weights = st.integers(-1, 9) | st.just(2**31 - 1)
values = st.sampled_from([b"\1", b"\2", b"", b"\1\0", b"\5"])

actions = st.builds(
    lambda name, params: p4r.Action(action_id=number(name), params=[{"param_id": 1, "value": one} for one in params]),
    st.sampled_from(["answer", "leave", "miss"]),
    st.lists(values, max_size=2),
)
sets = st.lists(st.builds(p4r.ActionProfileAction, action=actions, weight=weights), max_size=3)
table_actions = st.one_of(
    st.just(p4r.TableAction()),
    st.builds(lambda one: p4r.TableAction(action=one), actions),
    st.builds(lambda one: p4r.TableAction(action_profile_member_id=one), small),
    st.builds(lambda one: p4r.TableAction(action_profile_group_id=one), small),
    st.builds(lambda of: p4r.TableAction(action_profile_action_set={"action_profile_actions": of}), sets),
)
meter_configs = st.builds(p4r.MeterConfig, cir=wide, cburst=wide, pir=wide, pburst=wide)
matches = st.one_of(
    st.builds(lambda value: p4r.FieldMatch(field_id=1, exact={"value": value}), values),
    st.builds(lambda value: p4r.FieldMatch(field_id=1, ternary={"value": value, "mask": b"\x0f"}), values),
)
rows = st.builds(
    p4r.TableEntry,
    table_id=tables,
    match=st.lists(matches, max_size=2),
    action=table_actions,
    priority=st.integers(0, 1),
    meter_config=st.none() | meter_configs,
    idle_timeout_ns=st.just(0) | wide,
    metadata=st.binary(max_size=2),
    is_default_action=st.sampled_from([False, False, False, True]),
)
indices = st.none() | st.builds(p4r.Index, index=wide)
members = st.builds(p4r.ActionProfileMember, action_profile_id=profiles, member_id=small, action=st.none() | actions)
group_members = st.builds(p4r.ActionProfileGroup.Member, member_id=small, weight=weights)
groups = st.builds(
    p4r.ActionProfileGroup,
    action_profile_id=profiles,
    group_id=small,
    members=st.lists(group_members, max_size=3),
    max_size=st.integers(-1, 9),
)
pairs = st.lists(st.builds(lambda one, other: [one, other], values, values), max_size=4)


def value_set(of: list[list[bytes]]) -> p4r.ValueSetEntry:
    match = [[{"field_id": place, "exact": {"value": value}} for place, value in enumerate(one, 1)] for one in of]
    return p4r.ValueSetEntry(value_set_id=number("pairs"), members=[{"match": one} for one in match])


entities = st.one_of(
    st.builds(lambda one: p4r.Entity(table_entry=one), rows),
    st.builds(lambda one: p4r.Entity(action_profile_member=one), members),
    st.builds(lambda one: p4r.Entity(action_profile_group=one), groups),
    st.builds(
        lambda of, at, config: p4r.Entity(meter_entry={"meter_id": of, "index": at, "config": config}),
        ids,
        indices,
        st.none() | meter_configs,
    ),
    st.builds(
        lambda row, config: p4r.Entity(direct_meter_entry={"table_entry": row, "config": config}),
        rows,
        st.none() | meter_configs,
    ),
    st.builds(lambda of: p4r.Entity(value_set_entry=value_set(of)), pairs),
)
good_actions = st.builds(lambda value: call("answer", value), st.sampled_from([b"\1", b"\2"]))
good_sets = st.lists(st.builds(p4r.ActionProfileAction, action=good_actions, weight=st.integers(1, 3)), max_size=2)
good = st.one_of(
    st.builds(member, st.integers(1, 3), st.sampled_from([b"\1", b"\2"])),
    st.builds(lambda of, *to: group(of, *((one, 2) for one in to)), st.integers(1, 2), st.integers(1, 3)),
    st.builds(lambda a, to: entry("selected", a, to_member(to)), values, st.integers(1, 3)),
    st.builds(lambda a, to: entry("selected", a, to_group(to)), values, st.integers(1, 2)),
    st.builds(
        lambda a, of: entry("selected", a, p4r.TableAction(action_profile_action_set={"action_profile_actions": of})),
        values,
        good_sets,
    ),
)
updates = st.lists(
    st.tuples(st.just(1), good) | st.tuples(st.integers(1, 3), good) | st.tuples(st.integers(1, 3), entities),
    min_size=8,
    max_size=16,
)


@pytest.fixture(scope="module")
def loaded() -> tuple[Engine, Pipeline]:
    engine = Engine({})
    config: Any = pipeline()
    engine.load(config.p4_device_config)
    return engine, Pipeline(engine, config)


@settings(max_examples=250, deadline=None)
@given(steps=updates, query=entities)
def test_every_request_is_carried_out_or_refused(
    loaded: tuple[Engine, Pipeline], steps: list[tuple[int, p4r.Entity]], query: p4r.Entity
) -> None:
    engine, program = loaded
    for kind, entity in steps:
        try:
            program.entities.write(p4r.Update(type=kind, entity=entity))
        except SwitchError as error:
            assert str(error)
    try:
        answers = list(program.entities.read(query))
    except SwitchError as error:
        assert str(error)
    else:
        assert all(answer.WhichOneof("entity") == query.WhichOneof("entity") for answer in answers)
    for table in NUMBERS.values():
        assert len(engine.inject(0, bytes([table, 1]) + bytes(25))) == 1
    engine.take_idle(0)
    everything = [p4r.Entity(table_entry={}), p4r.Entity(action_profile_group={}), p4r.Entity(action_profile_member={})]
    for wildcard in everything:  # every entity read can be deleted, entries first
        for entity in program.entities.read(wildcard):
            if not entity.table_entry.is_const:
                program.entities.write(p4r.Update(type=p4r.Update.DELETE, entity=entity))
    assert engine.profile_use("Tables.chosen") == (0, 0)
