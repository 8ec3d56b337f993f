"""The P4Info of a random program, for switches that P4Runtime controls."""

import json
from typing import Any

from finsy.proto import p4i

KINDS = {
    "exact": p4i.MatchField.EXACT,
    "lpm": p4i.MatchField.LPM,
    "ternary": p4i.MatchField.TERNARY,
    "range": p4i.MatchField.RANGE,
}
ACTIONS, TABLES = 0x01000001, 0x02000001  # first ids


def p4info_of(document: bytes) -> p4i.P4Info:
    """Return the program's actions and tables."""
    root, info = json.loads(document), p4i.P4Info()
    for number, action in enumerate(root["actions"]):
        _add_action(info, ACTIONS + number, action)
    tables = [table for pipeline in root["pipelines"] for table in pipeline["tables"]]
    for number, table in enumerate(tables):
        _add_table(info, TABLES + number, table, _widths(root))
    return info


def _widths(root: dict[str, Any]) -> dict[tuple[str, str], int]:
    types = {kind["name"]: kind["fields"] for kind in root["header_types"]}
    return {
        (header["name"], field[0]): field[1] for header in root["headers"] for field in types[header["header_type"]]
    }


def _add_action(info: p4i.P4Info, number: int, action: dict[str, Any]) -> None:
    told = info.actions.add()
    told.preamble.id, told.preamble.name, told.preamble.alias = number, action["name"], action["name"]
    for place, data in enumerate(action["runtime_data"], 1):
        told.params.add(id=place, name=data["name"], bitwidth=data["bitwidth"])


def _add_table(info: p4i.P4Info, number: int, table: dict[str, Any], widths: dict[tuple[str, str], int]) -> None:
    told = info.tables.add(size=table["max_size"], is_const_table="entries" in table)
    told.preamble.id, told.preamble.name, told.preamble.alias = number, table["name"], table["name"]
    for place, key in enumerate(table["key"], 1):
        width = widths[key["target"][0], key["target"][1]]
        told.match_fields.add(id=place, name=key["name"], bitwidth=width, match_type=KINDS[key["match_type"]])
    for action in table["action_ids"]:
        told.action_refs.add(id=ACTIONS + action)
    default = table["default_entry"]
    if default["action_const"]:
        told.const_default_action_id = ACTIONS + default["action_id"]
