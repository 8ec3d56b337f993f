"""The headers of the BMv2 JSON: types, instances, stacks, unions and stacks of unions."""

from collections.abc import Mapping
from typing import Any

from kofn_switch.compiler.ir.places import Json, place_of
from kofn_switch.compiler.ir.program import WIDTH_MAX, Field, Header, HeaderType, HeaderUnion, Stack, UnionStack
from kofn_switch.errors import ProgramError


def read_types(root: Json) -> dict[str, HeaderType]:
    """Return header and struct types by name.  Raises ProgramError."""
    return {
        item["name"]: HeaderType(name=item["name"], fields=tuple(_field(field, item) for field in item["fields"]))
        for item in root["header_types"]
    }


def _field(field: list[Any], item: Json) -> Field:
    name, width, signed = [*field, False][:3]
    variable = width == "*"
    if variable:
        width = 8 * item["max_length"] - sum(other[1] for other in item["fields"] if other[1] != "*")
    if width > WIDTH_MAX:
        raise ProgramError(f"{place_of(item)}: {item['name']}.{name} has {width} bits; at most {WIDTH_MAX}")
    return Field(name=name, width=width, signed=bool(signed) and not variable, variable=variable)


def read_headers(root: Json, types: Mapping[str, HeaderType]) -> dict[str, Header]:
    """Return header and metadata instances by name."""
    return {
        item["name"]: Header(name=item["name"], type=types[item["header_type"]], metadata=item["metadata"])
        for item in root["headers"]
    }


def read_stacks(root: Json, types: Mapping[str, HeaderType]) -> dict[str, Stack]:
    names = {item["id"]: item["name"] for item in root["headers"]}
    return {
        item["name"]: Stack(
            name=item["name"],
            type=types[item["header_type"]],
            members=tuple(names[number] for number in item["header_ids"]),
        )
        for item in root["header_stacks"]
    }


def read_unions(root: Json) -> dict[str, HeaderUnion]:
    """Return header unions by name, those in stacks included."""
    names = {item["id"]: item["name"] for item in root["headers"]}
    types = {item["name"]: [member for member, _ in item["headers"]] for item in root.get("header_union_types", [])}
    return {
        item["name"]: HeaderUnion(
            name=item["name"],
            members={
                member: names[number]
                for member, number in zip(types[item["union_type"]], item["header_ids"], strict=True)
            },
        )
        for item in root.get("header_unions", [])
    }


def read_union_stacks(root: Json, types: Mapping[str, HeaderType]) -> dict[str, UnionStack]:
    """Return stacks of header unions by name."""
    names = {item["id"]: item["name"] for item in root.get("header_unions", [])}
    kinds = {item["name"]: item["headers"] for item in root.get("header_union_types", [])}
    return {
        item["name"]: UnionStack(
            name=item["name"],
            unions=tuple(names[number] for number in item["header_union_ids"]),
            types={member: types[kind] for member, kind in kinds[item["union_type"]]},
        )
        for item in root.get("header_union_stacks", [])
    }
