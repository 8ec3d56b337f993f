"""The program with every kind of table, suite/programs/tables.p4, in P4Runtime's messages."""

from functools import cache
from pathlib import Path
from typing import Any

from finsy.proto import p4i, p4r
from google.protobuf import text_format

from tests.switch.p4runtime.harness import Target

PROGRAMS = Path(__file__).parent.parent / "suite" / "programs"
KINDS = ("tables", "actions", "action_profiles", "meters", "direct_meters", "counters", "registers", "value_sets")
OUT = 2
ETHER_TYPE = b"\x90\x00"  # accepted at the ports' other ends; it is in the middle of the wide field
NUMBERS = {"indirect": 11, "selected": 13, "metered": 14, "pairs": 17, "cell_meter": 15, "aged": 16}


@cache
def p4info() -> p4i.P4Info:
    return text_format.Parse((PROGRAMS / "tables.p4info.txtpb").read_text(), p4i.P4Info())


def pipeline() -> p4r.ForwardingPipelineConfig:
    return p4r.ForwardingPipelineConfig(p4info=p4info(), p4_device_config=(PROGRAMS / "tables.json").read_bytes())


def number(name: str) -> int:
    """Return an object's id by the end of its name."""
    items = [item.preamble for kind in KINDS for item in getattr(p4info(), kind)]
    return next(int(item.id) for item in items if item.name.partition(".")[2] == name)


def call(name: str, *values: bytes) -> p4r.Action:
    params = [p4r.Action.Param(param_id=place, value=value) for place, value in enumerate(values, 1)]
    return p4r.Action(action_id=number(name), params=params)


def entry(table: str, a: bytes, action: p4r.TableAction | None = None, **fields: Any) -> p4r.Entity:
    match = [p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=a))]
    return p4r.Entity(table_entry=p4r.TableEntry(table_id=number(table), match=match, action=action, **fields))


def member(number_: int, value: bytes, profile: str = "chosen") -> p4r.Entity:
    return p4r.Entity(
        action_profile_member=p4r.ActionProfileMember(
            action_profile_id=number(profile), member_id=number_, action=call("answer", value)
        )
    )


def group(number_: int, *members: tuple[int, int], **fields: Any) -> p4r.Entity:
    of = [p4r.ActionProfileGroup.Member(member_id=one, weight=weight) for one, weight in members]
    return p4r.Entity(
        action_profile_group=p4r.ActionProfileGroup(
            action_profile_id=number("chosen"), group_id=number_, members=of, **fields
        )
    )


def to_member(member_id: int) -> p4r.TableAction:
    return p4r.TableAction(action_profile_member_id=member_id)


def to_group(group_id: int) -> p4r.TableAction:
    return p4r.TableAction(action_profile_group_id=group_id)


def to_set(*actions: tuple[bytes, int], **fields: Any) -> p4r.TableAction:
    of = [p4r.ActionProfileAction(action=call("answer", value), weight=weight) for value, weight in actions]
    return p4r.TableAction(action_profile_action_set=p4r.ActionProfileActionSet(action_profile_actions=of, **fields))


async def probe(target: Target, table: str, a: int = 0, b: int = 0) -> tuple[int, int, int]:
    """Send a packet and return its result, after and colour."""
    target.send(1, bytes([NUMBERS[table], a]) + b.to_bytes(2, "big") + bytes(8) + ETHER_TYPE + bytes(13))
    packet = await target.receive(OUT)
    return packet[24], packet[25], packet[26]
