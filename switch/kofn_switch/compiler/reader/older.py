"""Rewrites documents of older compilers, above all p4c-bm, into the form that p4c writes today.

BMv2 takes both forms.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kofn_switch.compiler.ir.places import Json

SECTIONS = ["header_stacks", "counter_arrays", "register_arrays", "calculations", "checksums", "learn_lists", "actions"]
"""Lists that a document may lack."""

RENAMED = {"modify_field": "assign", "copy_header": "assign_header"}
OPERATORS = {
    "add": "+",
    "subtract": "-",
    "bit_and": "&",
    "bit_or": "|",
    "bit_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
"""Primitives that assign the result of an operator to their first argument."""

IN_PLACE = {"add_to_field": "+", "subtract_from_field": "-"}
"""Primitives whose first argument is the operator's left operand as well."""

STANDARD_METADATA = {"type": "header", "value": "standard_metadata"}
MEMBERS = 1024
"""The size of an action profile that declares no size; BMv2 takes any number of members."""


def as_p4c_writes(root: Json) -> Json:
    """Return the document in p4c's form."""
    root = {**{section: [] for section in SECTIONS}, **root}
    numbers, lengths = {action["name"]: action["id"] for action in root["actions"]}, _lengths(root)
    return {
        **root,
        "header_types": [{key: kind[key] for key in kind if key != "length_exp"} for kind in root["header_types"]],
        "parsers": [_parser(parser, lengths) for parser in root["parsers"]],
        "actions": [{**action, "primitives": [*map(_primitive, action["primitives"])]} for action in root["actions"]],
        "pipelines": [_pipeline(pipeline, numbers) for pipeline in root["pipelines"]],
    }


def _primitive(item: Json) -> Json:
    op, arguments = item["op"], item["parameters"]
    if op == "drop":
        return {**item, "op": "mark_to_drop", "parameters": [STANDARD_METADATA]}
    if op in RENAMED:
        return {**item, "op": RENAMED[op]}
    if op in IN_PLACE:
        arguments = [arguments[0], *arguments]
    elif op not in OPERATORS:
        return item
    target, left, right = arguments
    value = {"op": (OPERATORS | IN_PLACE)[op], "left": left, "right": right}
    return {**item, "op": "assign", "parameters": [target, {"type": "expression", "value": value}]}


def _pipeline(item: Json, numbers: Mapping[str, int]) -> Json:
    profiles = [_profile(table) for table in item["tables"] if "act_prof_name" in table]
    return {
        **item,
        "action_profiles": [*item.get("action_profiles", []), *profiles],
        "tables": [_table(table, numbers) for table in item["tables"]],
    }


def _profile(table: Json) -> Json:
    selector = {"selector": table["selector"]} if "selector" in table else {}
    return {"name": table["act_prof_name"], "max_size": max(MEMBERS, table["max_size"]), **selector}


def _table(table: Json, numbers: Mapping[str, int]) -> Json:
    ids = table["action_ids"] if "action_ids" in table else [numbers[name] for name in table["actions"]]
    profile = {"action_profile": table["act_prof_name"]} if "act_prof_name" in table else {}
    return {**table, "action_ids": ids, **profile}


# The length of a variable field: p4c gives it where the header is extracted, p4c-bm in the header's type


def _lengths(root: Json) -> dict[str, Json]:
    """Return the length in bits of the variable field of each header and stack whose type gives it."""
    kinds = {kind["name"]: _length(kind) for kind in root["header_types"] if kind.get("length_exp")}
    instances = [*root["headers"], *root["header_stacks"]]
    return {item["name"]: kinds[item["header_type"]] for item in instances if item["header_type"] in kinds}


def _length(kind: Json) -> Json:
    """Return the length as an expression of bits ahead of the parser, where the header's first fields are."""
    places, at = [], 0
    for _, width, *_ in kind["fields"]:
        places.append([at, width])
        at += 0 if width == "*" else width
    return {"type": "expression", "value": _ahead(kind["length_exp"], places)}


def _ahead(item: Any, places: Sequence[Any]) -> Any:
    if not isinstance(item, Mapping):
        return item
    if item.get("type") == "local":
        return {"type": "lookahead", "value": places[item["value"]]}
    return {key: _ahead(value, places) for key, value in item.items()}


def _parser(parser: Json, lengths: Mapping[str, Json]) -> Json:
    states = [
        {**state, "parser_ops": [_parser_op(op, lengths) for op in state["parser_ops"]]}
        for state in parser["parse_states"]
    ]
    return {**parser, "parse_states": states}


def _parser_op(item: Json, lengths: Mapping[str, Json]) -> Json:
    if item["op"] != "extract" or item["parameters"][0]["type"] not in ("regular", "stack"):
        return item
    (target,) = item["parameters"]
    length = lengths.get(target["value"])
    return item if length is None else {**item, "op": "extract_VL", "parameters": [target, length]}
