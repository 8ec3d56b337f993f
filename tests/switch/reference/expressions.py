"""Evaluates expressions: integers of any size, Booleans; division by zero gives zero."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    Operation,
    StackOf,
    Truth,
    UnionOf,
    UnionStackOf,
)
from kofn_switch.compiler.ir.program import Program
from tests.switch.reference.packet import Headers, Instance, to_bits, undefined, wrap

SHIFT_MAX = 1 << 16  # larger left shifts leave no bits that a field could hold
INDEX_BITS = 64  # width of the lastIndex of an empty stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The values that an expression can read."""

    program: Program
    headers: Headers
    arguments: Sequence[int] = ()
    ahead: bytes = b""  # in parsers: the packet's next bytes

    def value(self, expression: Expression) -> int:
        """Return a number; Booleans are 0 and 1."""
        match expression:
            case Constant(value) | Truth(value):
                return int(value)
            case Argument(index):
                return self.arguments[index]
            case Lookahead(offset, width):
                return int(to_bits(self.ahead)[offset : offset + width], 2)
            case FieldOf() | LastField() | LastUnionField() | ElementField():
                return self._instance_of(expression).get(expression.field)
            case Operation(op, operands):
                return int(self._operation(op, operands))
        undefined(expression)

    def truth(self, expression: Expression) -> bool:
        return self.value(expression) != 0

    def header_name(self, expression: Expression) -> str | None:
        """Return the header that an expression names; None for an index outside of its stack."""
        match expression:
            case HeaderOf(header):
                return header
            case Element(stack, index):
                members, at = self.program.stacks[stack].members, self.value(index)
                return members[at] if 0 <= at < len(members) else None
            case Operation("?", (condition, then, otherwise)):
                return self.header_name(then if self.truth(condition) else otherwise)
        undefined(expression)

    def instance(self, expression: Expression) -> Instance:
        """Return the header itself; outside of a stack an invalid one that is not kept."""
        name = self.header_name(expression)
        if name is not None:
            return self.headers[name]
        assert isinstance(expression, Element)
        return Instance(type=self.program.stacks[expression.stack].type, metadata=False)

    def _instance_of(self, expression: FieldOf | LastField | LastUnionField | ElementField) -> Instance:
        match expression:
            case FieldOf(header):
                return self.headers[header]
            case ElementField(stack, index):
                return self.instance(Element(stack, index))
            case LastField(stack):
                return self.headers[self.program.stacks[stack].members[self.headers.next[stack] - 1]]
            case LastUnionField(stack, member):
                union = self.program.union_stacks[stack].unions[self.headers.next[stack] - 1]
                return self.headers[self.program.unions[union].members[member]]

    def assign(self, target: Expression, value: int) -> None:
        """Set a field; outside of a stack, change nothing."""
        match target:
            case FieldOf() | LastField() | LastUnionField() | ElementField():
                self._instance_of(target).set(target.field, value)
            case _:
                undefined(target)

    def _operation(self, op: str, operands: Sequence[Expression]) -> int | bool:
        if op == "?":
            return self.value(operands[1] if self.truth(operands[0]) else operands[2])
        if op in ("==", "!="):
            return self._equal(*operands) == (op == "==")
        if op in STRUCTURES:
            return STRUCTURES[op](self, operands[0])
        values = [self.value(operand) for operand in operands]
        if len(values) == 1 and op in UNARY:
            return UNARY[op](values[0])
        if len(values) == 2 and op in BINARY:
            return BINARY[op](values[0], values[1])
        undefined(f"operator {op} of {len(values)}")

    def _equal(self, left: Expression, right: Expression) -> bool:
        """Compare. Headers are equal when both are valid and all fields are equal; unions when
        their valid headers are."""
        if isinstance(left, UnionOf) and isinstance(right, UnionOf):
            pairs = zip(self._members(left), self._members(right), strict=True)
            return any(_same(one, other) for one, other in pairs)
        if isinstance(left, HeaderOf | Element):
            return _same(self.instance(left), self.instance(right))
        if isinstance(left, StackOf | UnionStackOf):
            undefined("equality of stacks")
        return self.value(left) == self.value(right)

    def _members(self, union: UnionOf) -> list[Instance]:
        return [self.headers[name] for name in self.program.unions[union.union].members.values()]


def _same(one: Instance, other: Instance) -> bool:
    return one.valid and other.valid and one.values == other.values and one.length == other.length


def _valid(scope: Scope, operand: Expression) -> bool:
    if isinstance(operand, UnionOf):
        return scope.headers.union_is_valid(operand.union)
    return scope.instance(operand).valid


def _size(scope: Scope, operand: Expression) -> int:
    if not isinstance(operand, StackOf | UnionStackOf):
        undefined(operand)
    return scope.headers.next[operand.stack]


STRUCTURES: dict[str, Callable[[Scope, Expression], int]] = {
    "valid": _valid,
    "valid_union": _valid,
    "size_stack": _size,
    "last_stack_index": lambda scope, operand: wrap(_size(scope, operand) - 1, INDEX_BITS),
}
UNARY: dict[str, Callable[[int], int]] = {
    "+": operator.pos,
    "-": operator.neg,
    "~": operator.invert,
    "not": operator.not_,
    "d2b": bool,
    "b2d": int,
}
BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "<<": lambda a, b: a << b if b < SHIFT_MAX else 0,
    ">>": lambda a, b: a >> min(b, SHIFT_MAX),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "two_comp_mod": lambda a, width: wrap(a, width, signed=True),
    "usat_cast": lambda a, width: min(max(a, 0), (1 << width) - 1),
    "sat_cast": lambda a, width: min(max(a, -(1 << (width - 1))), (1 << (width - 1)) - 1),
}
