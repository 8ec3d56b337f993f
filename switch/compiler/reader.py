"""p4c's BMv2 JSON (format 2.x, behavioral-model's docs/JSON_format.md) to a `Program`.

Refuses by ProgramError what the model has no place for.  What the model can hold but the generator cannot execute is
refused there.
"""

import json
from collections.abc import Mapping
from typing import Any

from switch.compiler.expressions import header_width, read_expression
from switch.compiler.program import (
    WIDTH_MAX,
    Action,
    Array,
    Calculation,
    Checksum,
    Field,
    FieldList,
    FieldOf,
    Header,
    HeaderType,
    LearnList,
    Parameter,
    ParserState,
    Place,
    Primitive,
    Program,
    Stack,
    Transition,
)
from switch.compiler.reader_tables import read_pipeline
from switch.errors import ProgramError

Json = Mapping[str, Any]

UNUSED = {
    "header_unions": "header union",
    "header_union_stacks": "header union stack",
    "parse_vsets": "parser value set",
    "meter_arrays": "meter",
    "extern_instances": "extern instance",
}


def read_program(document: bytes) -> Program:
    """The program in the JSON text `document`.  Raises ProgramError."""
    try:
        root: Json = json.loads(document)
    except ValueError as error:
        raise ProgramError(f"not p4c's BMv2 JSON: {error}") from error
    try:
        major = root["__meta__"]["version"][0]
    except (KeyError, TypeError, IndexError) as error:
        raise ProgramError("not p4c's BMv2 JSON: it has no __meta__.version") from error
    if major != 2:
        raise ProgramError(f"BMv2 JSON of format {major}.x; format 2.x is read")
    _refuse_unused(root)
    try:
        return _read(root)
    except (KeyError, IndexError, TypeError, StopIteration) as error:
        raise ProgramError(f"the BMv2 JSON contradicts its format: {error!r}") from error


def place_of(item: Json) -> Place:
    """The P4 source place that p4c noted with a JSON object."""
    info = item.get("source_info") or {}
    return Place(file=info.get("filename", ""), line=info.get("line", 0), fragment=info.get("source_fragment", ""))


def _refuse_unused(root: Json) -> None:
    for section, word in UNUSED.items():
        for item in root.get(section, []):
            raise ProgramError(f"{place_of(item)}: {word} {item['name']} is not executed")


def _read(root: Json) -> Program:
    types = {item["name"]: _header_type(item) for item in root["header_types"]}
    headers = {item["name"]: _header(item, types) for item in root["headers"]}
    stacks = _stacks(root, types)
    actions = {item["id"]: _action(item, headers, stacks) for item in root["actions"]}
    calculations = {item["name"]: _calculation(item, headers, stacks) for item in root["calculations"]}
    direct = {item["binding"] for item in root["counter_arrays"] if item["is_direct"]}
    pipelines = {
        item["name"]: read_pipeline(item, actions, headers, stacks, direct, place_of) for item in root["pipelines"]
    }
    parser = root["parsers"][0]
    return Program(
        headers=headers,
        stacks=stacks,
        errors={name: number for name, number in root.get("errors", [])},
        parser_start=parser["init_state"],
        states={item["name"]: _state(item, headers, stacks) for item in parser["parse_states"]},
        deparser=_deparser(root["deparsers"][0]),
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
    )


def _header_type(item: Json) -> HeaderType:
    fields = tuple(_field(field, item) for field in item["fields"])
    return HeaderType(name=item["name"], fields=fields)


def _field(field: list[Any], item: Json) -> Field:
    name, width, signed = [*field, False][:3]
    if width == "*":
        raise ProgramError(f"{place_of(item)}: the varbit field {name} of {item['name']} is not executed")
    if width > WIDTH_MAX:
        raise ProgramError(f"{place_of(item)}: {item['name']}.{name} has {width} bits; at most {WIDTH_MAX}")
    return Field(name=name, width=width, signed=bool(signed))


def _header(item: Json, types: Mapping[str, HeaderType]) -> Header:
    return Header(name=item["name"], type=types[item["header_type"]], metadata=item["metadata"])


def _stacks(root: Json, types: Mapping[str, HeaderType]) -> dict[str, Stack]:
    names = {item["id"]: item["name"] for item in root["headers"]}
    return {
        item["name"]: Stack(
            name=item["name"],
            type=types[item["header_type"]],
            members=tuple(names[number] for number in item["header_ids"]),
        )
        for item in root["header_stacks"]
    }


def _primitive(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> Primitive:
    place = place_of(item)
    arguments = tuple(read_expression(argument, headers, stacks, place) for argument in item["parameters"])
    return Primitive(op=item["op"], arguments=arguments, place=place)


def _action(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> Action:
    return Action(
        id=item["id"],
        name=item["name"],
        parameters=tuple(Parameter(name=data["name"], width=data["bitwidth"]) for data in item["runtime_data"]),
        primitives=tuple(_primitive(primitive, headers, stacks) for primitive in item["primitives"]),
    )


def _state(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> ParserState:
    place = place_of(item)
    key = [read_expression(part, headers, stacks, place) for part in item["transition_key"]]
    return ParserState(
        name=item["name"],
        statements=tuple(_parser_op(op, headers, stacks) for op in item["parser_ops"]),
        key=tuple((part, header_width(part, headers, stacks)) for part in key),
        transitions=tuple(_transition(case, place) for case in item["transitions"]),
    )


def _parser_op(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> Primitive:
    if item["op"] == "primitive":  # an extern call or an assignment, wrapped
        return _primitive(item["parameters"][0], headers, stacks)
    return _primitive(item, headers, stacks)


def _transition(case: Json, place: Place) -> Transition:
    if case["type"] == "default":
        return Transition(value=None, mask=None, next=case["next_state"])
    if case["type"] != "hexstr":
        raise ProgramError(f"{place}: a select case of kind {case['type']} is not executed")
    mask = None if case["mask"] is None else int(case["mask"], 16)
    return Transition(value=int(case["value"], 16), mask=mask, next=case["next_state"])


def _deparser(item: Json) -> tuple[str, ...]:
    for primitive in item.get("primitives", []):
        raise ProgramError(f"{place_of(primitive)}: {primitive['op']} in a deparser is not executed")
    return tuple(item["order"])


def _learn_list(item: Json, headers: Mapping[str, Header], stacks: Mapping[str, Stack]) -> LearnList:
    elements = tuple(read_expression(part, headers, stacks, place_of(item)) for part in item["elements"])
    return LearnList(
        id=item["id"],
        name=item["name"],
        elements=elements,
        widths=tuple(header_width(part, headers, stacks) for part in elements),
    )


def _field_list(item: Json) -> FieldList:
    """Constants in a list, which format 2 allows, are nothing that a packet could keep."""
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
