"""The pipelines of the BMv2 JSON: tables, their const entries, conditions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kofn_switch.compiler.ir.expressions import Expression, FieldOf
from kofn_switch.compiler.ir.program import Action, Condition, ConstEntry, DirectMeter, KeyField, Pipeline, Place, Table
from kofn_switch.compiler.reader.expressions import Headers, Stacks, header_width, read_expression
from kofn_switch.errors import ProgramError

Json = Mapping[str, Any]
KINDS = {  # the JSON's word to how the key is matched
    "exact": "exact",
    "lpm": "lpm",
    "ternary": "ternary",
    "range": "range",
    "valid": "exact",
    "optional": "ternary",
}
IMPLEMENTATIONS = ("simple", "indirect", "indirect_ws")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """The direct counters' names by table, and the direct meters by name."""

    counters: Mapping[str, str]
    meters: Mapping[str, DirectMeter]


def read_pipeline(
    item: Json,
    actions: Mapping[int, Action],
    headers: Headers,
    stacks: Stacks,
    attached: Attached,
    place_of: Callable[[Json], Place],
) -> Pipeline:
    for call in item.get("action_calls", []):
        raise ProgramError(f"{place_of(call)}: action call {call['name']} is not executed")
    tables = [_table(table, actions, headers, stacks, attached, place_of(table)) for table in item["tables"]]
    conditions = [
        Condition(
            name=node["name"],
            expression=read_expression(node["expression"], headers, stacks, place_of(node)),
            then=node["true_next"],
            otherwise=node["false_next"],
            place=place_of(node),
        )
        for node in item["conditionals"]
    ]
    return Pipeline(
        name=item["name"],
        start=item["init_table"],
        tables={table.name: table for table in tables},
        conditions={condition.name: condition for condition in conditions},
    )


def _table(
    item: Json,
    actions: Mapping[int, Action],
    headers: Headers,
    stacks: Stacks,
    attached: Attached,
    place: Place,
) -> Table:
    _check_kind(item, place)
    _check_actions(item, place)
    _check_entries(item, place)
    key = tuple(_key_field(field, headers, stacks, place) for field in item["key"])
    own = [actions[number] for number in item["action_ids"]]
    default = item.get("default_entry") or {"action_id": None}
    after = item["next_tables"]
    return Table(
        name=item["name"],
        key=key,
        actions=tuple(own),
        size=item["max_size"],
        counter=attached.counters.get(item["name"], item["name"] if item.get("with_counters") else None),
        default_action=default["action_id"],
        default_parameters=tuple(int(value, 16) for value in default.get("action_data", [])),
        default_const=bool(default.get("action_const")),
        entries=tuple(_const_entry(entry) for entry in item["entries"]) if "entries" in item else None,
        next={action.id: after.get(action.name, item.get("base_default_next")) for action in own},
        next_on_hit=_next_on_hit(item),
        place=place,
        next_default=item.get("base_default_next"),
        profile=item.get("action_profile"),
        meter=attached.meters[item["direct_meters"]] if item.get("direct_meters") else None,
        idle_timeouts=bool(item.get("support_timeout")),
    )


def _next_on_hit(item: Json) -> tuple[str | None, str | None] | None:
    """Return the nodes after a hit and after a miss, if the program distinguishes hit and miss. p4c omits a node that
    is the default next node."""
    after, default = item["next_tables"], item.get("base_default_next")
    if "__HIT__" not in after and "__MISS__" not in after:
        return None
    return after.get("__HIT__", default), after.get("__MISS__", default)


def _check_kind(item: Json, place: Place) -> None:
    if item["type"] not in IMPLEMENTATIONS:
        raise ProgramError(f"{place}: table {item['name']} of implementation {item['type']} is not executed")
    if item["type"] != "simple" and "action_profile" not in item:
        raise ProgramError(f"{place}: table {item['name']} names no action profile")
    if sum(field["match_type"] == "lpm" for field in item["key"]) > 1:
        raise ProgramError(f"{place}: table {item['name']} has more than one lpm field")


def _check_actions(item: Json, place: Place) -> None:
    """Check that the default action and the actions of const entries are among the table's."""
    entries = (entry["action_entry"] for entry in item.get("entries", []))
    for used in filter(None, (item.get("default_entry"), *entries)):
        if used["action_id"] not in item["action_ids"]:
            raise ProgramError(
                f"{place}: table {item['name']} uses action {used['action_id']}; its own are {item['action_ids']}"
            )


def _check_entries(item: Json, place: Place) -> None:
    """Check that const entries match as the table's key does, field by field."""
    own = [field["match_type"] for field in item["key"]]
    for entry in item.get("entries", []):
        kinds = [part["match_type"] for part in entry["match_key"]]
        if [KINDS.get(kind) for kind in kinds] != [KINDS.get(kind) for kind in own]:
            raise ProgramError(f"{place}: table {item['name']} has an entry with a key of {kinds}; its own is {own}")


def _key_field(field: Json, headers: Headers, stacks: Stacks, place: Place) -> KeyField:
    kind = field["match_type"]
    if kind not in KINDS:
        raise ProgramError(f"{place}: a key of kind {kind} is not executed")
    target = _target(field, headers, stacks, place)
    return KeyField(
        name=field.get("name") or ".".join(map(str, field["target"])),
        kind=KINDS[kind],
        target=target,
        width=header_width(target, headers, stacks),
        mask=None if field.get("mask") is None else int(field["mask"], 16),
    )


def _target(field: Json, headers: Headers, stacks: Stacks, place: Place) -> Expression:
    target = field["target"]
    if isinstance(target, str):
        return FieldOf(target, "$valid$")
    if isinstance(target, list):
        return FieldOf(target[0], target[1])
    return read_expression(target, headers, stacks, place)


def _const_entry(entry: Json) -> ConstEntry:
    return ConstEntry(
        key=tuple(_const_match(part) for part in entry["match_key"]),
        action=entry["action_entry"]["action_id"],
        parameters=tuple(int(value, 16) for value in entry["action_entry"]["action_data"]),
        priority=entry.get("priority", 0),
    )


def _const_match(part: Json) -> tuple[int, int]:
    match part["match_type"]:
        case "exact":
            return int(part["key"], 16), 0
        case "valid":
            return int(part["key"]), 0
        case "lpm":
            return int(part["key"], 16), part["prefix_length"]
        case "range":
            return int(part["start"], 16), int(part["end"], 16)
        case _:
            return int(part["key"], 16), int(part["mask"], 16)
