"""Well-formed P4Runtime messages for all objects of a program, to start from."""

import random
from collections.abc import Iterator

from finsy.proto import p4d, p4i, p4r

DEVICE_ID = 1
HIGHEST = p4r.Uint128(high=2**64 - 1, low=2**64 - 1)
"""The primary's election id, the highest possible one."""


def entities(info: p4i.P4Info, chance: random.Random) -> Iterator[p4r.Entity]:
    """Yield one or more entities of every kind, with random values."""
    for table in info.tables:
        yield p4r.Entity(table_entry=_table_entry(info, table, chance))
        yield p4r.Entity(table_entry=p4r.TableEntry(table_id=table.preamble.id, is_default_action=True))
        yield p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=_table_entry(info, table, chance)))
        yield p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=_table_entry(info, table, chance)))
    for profile in info.action_profiles:
        number = profile.preamble.id
        action = _action(info, chance.choice(_actions_of(info, profile)), chance)
        member = p4r.ActionProfileMember(action_profile_id=number, member_id=chance.randint(0, 3), action=action)
        yield p4r.Entity(action_profile_member=member)
        group = p4r.ActionProfileGroup(action_profile_id=number, group_id=chance.randint(0, 3))
        group.members.add(member_id=chance.randint(0, 3), weight=1)
        yield p4r.Entity(action_profile_group=group)
    yield from _arrays(info, chance)
    yield from _replication(chance)


def _arrays(info: p4i.P4Info, chance: random.Random) -> Iterator[p4r.Entity]:
    for counter in info.counters:
        entry = p4r.CounterEntry(counter_id=counter.preamble.id, index=p4r.Index(index=chance.randint(0, counter.size)))
        entry.data.packet_count = chance.getrandbits(63)
        yield p4r.Entity(counter_entry=entry)
    for meter in info.meters:
        config = p4r.MeterConfig(cir=chance.getrandbits(40), cburst=1, pir=chance.getrandbits(40), pburst=1)
        index = p4r.Index(index=chance.randint(0, meter.size))
        yield p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=meter.preamble.id, index=index, config=config))
    for register in info.registers:
        data = p4d.P4Data(bitstring=_value(register.type_spec.bitstring.bit.bitwidth or 8, chance))
        index = p4r.Index(index=chance.randint(0, register.size))
        yield p4r.Entity(register_entry=p4r.RegisterEntry(register_id=register.preamble.id, index=index, data=data))
    for digest in info.digests:
        often = p4r.DigestEntry.Config(max_timeout_ns=1, max_list_size=1, ack_timeout_ns=1)
        yield p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=digest.preamble.id, config=often))
    for value_set in info.value_sets:
        member = p4r.ValueSetMember(match=[_match(field, chance) for field in value_set.match])
        yield p4r.Entity(value_set_entry=p4r.ValueSetEntry(value_set_id=value_set.preamble.id, members=[member]))


def _replication(chance: random.Random) -> Iterator[p4r.Entity]:
    replicas = [p4r.Replica(egress_port=chance.randint(0, 511), instance=number) for number in range(3)]
    group = p4r.MulticastGroupEntry(multicast_group_id=chance.randint(0, 4), replicas=replicas)
    yield p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=group))
    session = p4r.CloneSessionEntry(session_id=chance.randint(0, 4), replicas=replicas, packet_length_bytes=64)
    yield p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(clone_session_entry=session))


def _table_entry(info: p4i.P4Info, table: p4i.Table, chance: random.Random) -> p4r.TableEntry:
    entry = p4r.TableEntry(table_id=table.preamble.id, match=[_match(field, chance) for field in table.match_fields])
    ordered = {p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL}
    if any(field.match_type in ordered for field in table.match_fields):
        entry.priority = chance.randint(1, 9)
    if table.implementation_id:
        entry.action.action_profile_member_id = chance.randint(0, 3)
    elif table.action_refs:
        entry.action.action.CopyFrom(_action(info, chance.choice(table.action_refs).id, chance))
    return entry


def _match(field: p4i.MatchField, chance: random.Random) -> p4r.FieldMatch:
    match, width = p4r.FieldMatch(field_id=field.id), field.bitwidth or 8
    value = _value(width, chance)
    if field.match_type == p4i.MatchField.LPM:
        match.lpm.prefix_len, match.lpm.value = width, value
    elif field.match_type == p4i.MatchField.TERNARY:
        match.ternary.value, match.ternary.mask = value, _bytes((1 << width) - 1)
    elif field.match_type == p4i.MatchField.RANGE:
        match.range.low, match.range.high = b"\0", value
    elif field.match_type == p4i.MatchField.OPTIONAL:
        match.optional.value = value
    else:
        match.exact.value = value
    return match


def _action(info: p4i.P4Info, number: int, chance: random.Random) -> p4r.Action:
    found = next(action for action in info.actions if action.preamble.id == number)
    params = [p4r.Action.Param(param_id=each.id, value=_value(each.bitwidth or 8, chance)) for each in found.params]
    return p4r.Action(action_id=number, params=params)


def _actions_of(info: p4i.P4Info, profile: p4i.ActionProfile) -> list[int]:
    tables = [table for table in info.tables if table.implementation_id == profile.preamble.id]
    return [reference.id for table in tables for reference in table.action_refs]


def _value(width: int, chance: random.Random) -> bytes:
    return _bytes(chance.getrandbits(chance.randint(1, width)))


def _bytes(value: int) -> bytes:
    """Return the shortest byte string."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
