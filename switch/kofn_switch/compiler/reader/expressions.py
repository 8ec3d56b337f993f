"""Reads the "type value object" of the BMv2 JSON into an expression tree."""

from collections.abc import Callable, Mapping
from typing import Any

from kofn_switch.compiler.ir.expressions import (
    Argument,
    Constant,
    Element,
    ElementField,
    Expression,
    FieldOf,
    HeaderOf,
    LastField,
    LastUnionField,
    Lookahead,
    NextUnionMember,
    Object,
    Operation,
    StackOf,
    Truth,
    UnionOf,
    UnionStackOf,
    Vector,
)
from kofn_switch.compiler.ir.program import Header, Place, Stack
from kofn_switch.errors import ProgramError

Headers = Mapping[str, Header]
Stacks = Mapping[str, Stack]

OBJECTS = ("counter_array", "register_array", "calculation", "meter_array", "string", "extern")

LEAVES: dict[str, Callable[[Any], Expression]] = {
    "hexstr": lambda value: Constant(int(value, 16)),
    "bool": Truth,
    "field": lambda value: FieldOf(value[0], value[1]),
    "header": HeaderOf,
    "regular": HeaderOf,
    "header_stack": StackOf,
    "stack": StackOf,
    "stack_field": lambda value: LastField(value[0], value[1]),
    "header_union": UnionOf,
    "header_union_stack": UnionStackOf,
    "union_stack": lambda value: NextUnionMember(value[0], value[1]),
    "union_stack_field": lambda value: LastUnionField(value[0], value[1], value[2]),
    "runtime_data": Argument,
    "local": Argument,
    "lookahead": lambda value: Lookahead(value[0], value[1]),
}


def read_expression(item: Mapping[str, Any], headers: Headers, stacks: Stacks, place: Place) -> Expression:
    """Return the tree of one JSON object; `place` is for refusals. Raise ProgramError."""
    kind, value = item["type"], item["value"]
    if kind == "expression":
        return (
            read_expression(value, headers, stacks, place)
            if "type" in value
            else _operation(value, headers, stacks, place)
        )
    if kind == "field" and isinstance(value[0], Mapping):  # p4c's form of stack[i].isValid()
        header = _operation(value[0], headers, stacks, place)
        return Operation("b2d", (Operation("valid", (header,)),))
    if kind == "parameters_vector":  # {} instead of [] when there are none
        return Vector(tuple(read_expression(part, headers, stacks, place) for part in value))
    if kind in OBJECTS:
        return Object(kind, value)
    if kind not in LEAVES:
        raise ProgramError(f"{place}: a value of kind {kind} is not executed")
    return LEAVES[kind](value)


def _operation(value: Mapping[str, Any], headers: Headers, stacks: Stacks, place: Place) -> Expression:
    op = value["op"]
    if op == "access_field":
        return _access(value, headers, stacks, place)
    items = [value.get("cond"), value.get("left"), value.get("right")]
    operands = [read_expression(item, headers, stacks, place) for item in items if item is not None]
    if op == "dereference_header_stack":
        stack, index = operands
        if isinstance(stack, StackOf):
            return Element(stack.stack, index)
    return Operation(op, tuple(operands))


def _access(value: Mapping[str, Any], headers: Headers, stacks: Stacks, place: Place) -> Expression:
    header = read_expression(value["left"], headers, stacks, place)
    if isinstance(header, Element):
        fields = stacks[header.stack].type.fields
        return ElementField(header.stack, header.index, fields[value["right"]].name)
    if isinstance(header, HeaderOf):
        return FieldOf(header.header, headers[header.header].type.fields[value["right"]].name)
    raise ProgramError(f"{place}: access_field to {type(header).__name__} is not executed")


def header_width(expression: Expression, headers: Headers, stacks: Stacks) -> int:
    """Return the width in bits of an expression that names a field or bits of the packet; 0 for others."""
    match expression:
        case FieldOf(header, field):
            return 1 if field == "$valid$" else headers[header].type.field(field).width
        case LastField(stack, field) | ElementField(stack, _, field):
            return stacks[stack].type.field(field).width
        case Lookahead(_, width):
            return width
        case _:
            return 0
