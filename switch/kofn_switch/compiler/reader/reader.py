"""Reads p4c's BMv2 JSON (format 2.x, behavioral-model's docs/JSON_format.md) into a `Program`.

It raises ProgramError for constructs that the model cannot hold. The generator refuses constructs that it cannot
execute.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kofn_switch.compiler.ir.expressions import Expression, FieldOf, HeaderOf, LastField, LastUnionField, Lookahead
from kofn_switch.compiler.ir.places import Json, place_of
from kofn_switch.compiler.ir.program import (
    Action,
    ActionProfile,
    Array,
    Calculation,
    Checksum,
    FieldList,
    Header,
    LearnList,
    Parameter,
    ParserState,
    Place,
    Primitive,
    Program,
    Stack,
    Transition,
    UnionStack,
    ValueSet,
)
from kofn_switch.compiler.reader.contradictions import contradictions
from kofn_switch.compiler.reader.expressions import header_width, read_expression
from kofn_switch.compiler.reader.headers import read_headers, read_stacks, read_types, read_union_stacks, read_unions
from kofn_switch.compiler.reader.linked_metadata import STANDARD, link_metadata
from kofn_switch.compiler.reader.meters import read_direct_meters, read_meters
from kofn_switch.compiler.reader.older import as_p4c_writes
from kofn_switch.compiler.reader.tables import Attached, read_pipeline
from kofn_switch.compiler.reader.typed import check_types
from kofn_switch.errors import ProgramError

VALUE_SET_SIZE = 1024
"""The number of keys in a value set that declares no size; BMv2 then takes any number of keys."""

UNUSED = {
    "extern_instances": "extern instance",
}


@lru_cache(maxsize=2)  # a push checks a program before it loads it
def read_program(document: bytes) -> Program:
    """Return the program in the JSON text `document`. Raise ProgramError."""
    try:
        root: Json = json.loads(document.decode(errors="replace"), strict=False)  # BMv2 takes any bytes in a string
    except ValueError as error:
        raise ProgramError(f"not p4c's BMv2 JSON: {error}") from error
    if not isinstance(root, Mapping) or "pipelines" not in root:
        raise ProgramError("not p4c's BMv2 JSON: it has no pipelines")
    with contradictions():
        _refuse_other_formats(root)
        _refuse_other_architectures(root)
        _refuse_unused(root)
        program = _read(link_metadata(as_p4c_writes(root)))
        check_types(program)
        return program


def _refuse_other_formats(root: Json) -> None:
    """Raise ProgramError for other formats; a document without a format is 2.x, as in BMv2."""
    major = root.get("__meta__", {}).get("version", [2])[0]
    if major != 2:
        raise ProgramError(f"BMv2 JSON of format {major}.x; format 2.x is read")


def _refuse_other_architectures(root: Json) -> None:
    for item in root["headers"]:
        architecture = item["name"].partition("_")[0]
        if item["metadata"] and architecture in ("psa", "pna"):
            raise ProgramError(f"the program must be v1model's, got one of {architecture.upper()} ({item['name']})")
    if STANDARD not in (item["name"] for item in root["headers"]):
        raise ProgramError(f"the program must be v1model's (not PSA, PNA or another), got one without {STANDARD}")


def _refuse_unused(root: Json) -> None:
    for section, word in UNUSED.items():
        for item in root.get(section, []):
            raise ProgramError(f"{place_of(item)}: {word} {item['name']} is not executed")


def _read(root: Json) -> Program:
    types = read_types(root)
    headers, stacks = read_headers(root, types), read_stacks(root, types)
    union_stacks = read_union_stacks(root, types)
    actions = {item["id"]: _action(item, headers, stacks) for item in root["actions"]}
    calculations = {item["name"]: _calculation(item, headers, stacks) for item in root["calculations"]}
    attached = Attached(
        counters={item["binding"]: item["name"] for item in root["counter_arrays"] if item["is_direct"]},
        meters=read_direct_meters(root, place_of),
    )
    pipelines = {
        item["name"]: read_pipeline(item, actions, headers, stacks, attached, place_of) for item in root["pipelines"]
    }
    parser = root["parsers"][0]
    return Program(
        headers=headers,
        stacks=stacks,
        unions=read_unions(root),
        union_stacks=union_stacks,
        errors={name: number for name, number in root.get("errors", [])},
        parser_start=parser["init_state"],
        states={item["name"]: _state(item, headers, stacks, union_stacks) for item in parser["parse_states"]},
        value_sets={item["name"]: _value_set(item) for item in root.get("parse_vsets", [])},
        deparser=tuple(root["deparsers"][0]["order"]),
        deparser_statements=tuple(
            _primitive(item, headers, stacks) for item in root["deparsers"][0].get("primitives", [])
        ),
        actions=actions,
        ingress=pipelines["ingress"],
        egress=pipelines["egress"],
        counters=tuple(
            Array(name=item["name"], size=item["size"]) for item in root["counter_arrays"] if not item["is_direct"]
        ),
        registers=tuple(
            Array(name=item["name"], size=item["size"], width=item["bitwidth"]) for item in root["register_arrays"]
        ),
        digests=tuple(_learn_list(item, headers, stacks) for item in root["learn_lists"]),
        field_lists={item["id"]: _field_list(item) for item in root.get("field_lists", [])},
        calculations=calculations,
        checksums=tuple(_checksum(item, calculations, headers, stacks) for item in root["checksums"]),
        meters=read_meters(root, place_of),
        profiles=_profiles(root, headers, stacks),
    )


def _value_set(item: Json) -> ValueSet:
    return ValueSet(name=item["name"], width=item["compressed_bitwidth"], size=item.get("max_size", VALUE_SET_SIZE))


def _primitive(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> Primitive:
    place = place_of(item)
    arguments = tuple(read_expression(argument, headers, stacks, place) for argument in item["parameters"])
    if item["op"] == "mark_to_drop":
        arguments = _drop_fields(arguments[0], headers, place)
    return Primitive(op=item["op"], arguments=arguments, place=place)


def _drop_fields(header: Expression, headers: Mapping[str, Header], place: Place) -> tuple[FieldOf, ...]:
    """Return the fields that mark_to_drop sets in its header, which is standard_metadata or a copy of it."""
    if not isinstance(header, HeaderOf):
        raise ProgramError(f"{place}: the argument of mark_to_drop must be a header, got {type(header).__name__}")
    names = {field.name for field in headers[header.header].type.fields}
    if "egress_spec" not in names:
        raise ProgramError(f"{place}: the header of mark_to_drop must have a field egress_spec, got {header.header}")
    return tuple(FieldOf(header.header, name) for name in ("egress_spec", "mcast_grp") if name in names)


def _action(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> Action:
    return Action(
        id=item["id"],
        name=item["name"],
        parameters=tuple(Parameter(name=data["name"], width=data["bitwidth"]) for data in item["runtime_data"]),
        primitives=tuple(_primitive(primitive, headers, stacks) for primitive in item["primitives"]),
    )


def _state(
    item: Json,
    headers: Mapping[str, Header],
    stacks: Mapping[str, Stack],
    union_stacks: Mapping[str, UnionStack],
) -> ParserState:
    place = place_of(item)
    key = [read_expression(part, headers, stacks, place) for part in item["transition_key"]]
    return ParserState(
        name=item["name"],
        statements=tuple(_parser_op(op, headers, stacks) for op in item["parser_ops"]),
        key=tuple((part, _key_width(part, headers, stacks, union_stacks, place)) for part in key),
        transitions=tuple(_transition(case, place) for case in item["transitions"]),
    )


def _key_width(
    part: Expression,
    headers: Mapping[str, Header],
    stacks: Mapping[str, Stack],
    union_stacks: Mapping[str, UnionStack],
    place: Place,
) -> int:
    match part:
        case LastUnionField(stack, member, field):
            return union_stacks[stack].types[member].field(field).width
        case FieldOf() | LastField() | Lookahead():
            return header_width(part, headers, stacks)
        case _:
            raise ProgramError(f"{place}: a select on an expression other than a field or a lookahead is not executed")


def _parser_op(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> Primitive:
    if item["op"] == "primitive":  # an extern call or an assignment, wrapped
        return _primitive(item["parameters"][0], headers, stacks)
    return _primitive(item, headers, stacks)


def _transition(case: Json, place: Place) -> Transition:
    kind = case.get("type") or ("default" if case["value"] == "default" else "hexstr")  # older p4c left it out
    if kind == "default":
        return Transition(value=None, mask=None, next=case["next_state"])
    if kind == "parse_vset" and case["mask"] is None:
        return Transition(value=None, mask=None, next=case["next_state"], value_set=case["value"])
    if kind != "hexstr":
        raise ProgramError(f"{place}: a select case of kind {kind} (or with a mask) is not executed")
    mask = None if case["mask"] is None else int(case["mask"], 16)
    return Transition(value=int(case["value"], 16), mask=mask, next=case["next_state"])


def _learn_list(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> LearnList:
    elements = tuple(read_expression(part, headers, stacks, place_of(item)) for part in item["elements"])
    return LearnList(
        id=item["id"],
        name=item["name"],
        elements=elements,
        widths=tuple(header_width(part, headers, stacks) for part in elements),
    )


def _field_list(item: Json) -> FieldList:
    """Read a field list, which names the metadata that a cloned, resubmitted or recirculated packet keeps. Leave out
    constants, which are no metadata."""
    for element in item["elements"]:
        if element["type"] not in ("field", "hexstr"):
            raise ProgramError(f"field list {item['name']}: a {element['type']} in it is not executed")
    fields = tuple(FieldOf(*element["value"]) for element in item["elements"] if element["type"] == "field")
    return FieldList(id=item["id"], name=item["name"], fields=fields)


def _calculation(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> Calculation:
    inputs: list[tuple[Any, int] | None] = []
    for part in item["input"]:
        if part["type"] == "payload":
            inputs.append(None)
        elif part["type"] == "header":
            header = headers[part["value"]]
            inputs += [(FieldOf(header.name, field.name), field.width) for field in header.type.fields]
        else:
            expression = read_expression(part, headers, stacks, place_of(item))
            width = part.get("bitwidth") or header_width(expression, headers, stacks)
            inputs.append((expression, width))
    return Calculation(name=item["name"], algorithm=item["algo"], inputs=tuple(inputs), place=place_of(item))


def _profiles(root: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> dict[str, ActionProfile]:
    items = [item for pipeline in root["pipelines"] for item in pipeline.get("action_profiles", [])]
    return {item["name"]: _profile(item, headers, stacks) for item in items}


def _profile(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> ActionProfile:
    selector = item.get("selector")
    named = None if selector is None else {"name": item["name"], "source_info": item.get("source_info"), **selector}
    return ActionProfile(
        name=item["name"],
        size=item["max_size"],
        selector=None if named is None else _calculation(named, headers, stacks),
        place=place_of(item),
    )


def _checksum(
    item: Json, calculations: Mapping[str, Calculation], headers: Mapping[str, Header], stacks: Mapping[str, Stack]
) -> Checksum:
    place = place_of(item)
    condition = item.get("if_cond")
    return Checksum(
        name=item["name"],
        target=FieldOf(*item["target"]),
        calculation=calculations[item["calculation"]],
        verify=item.get("verify", True),
        update=item.get("update", True),
        condition=None if condition is None else read_expression(condition, headers, stacks, place),
        place=place,
    )
