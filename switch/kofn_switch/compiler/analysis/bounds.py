"""Bounds of an expression's integers. They tell the generator how many bits suffice.

BMv2 computes with integers of any size, and cuts a result to the field's width when it assigns the result. The
generated code computes modulo a power of two. Comparisons, right shifts, divisions and saturation need exact operands
instead, and therefore the operands' bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kofn_switch.compiler.ir.expressions import (
    Argument,
    Constant,
    ElementField,
    Expression,
    FieldOf,
    LastField,
    LastUnionField,
    Lookahead,
    Operation,
)
from kofn_switch.compiler.ir.program import Field, Parameter, Program

SHIFT_MAX = 4096  # larger shifts to the left have no bounds; p4c always cuts their result


@dataclass(frozen=True, slots=True)
class Bounds:
    """All integers from `low` to `high`."""

    low: int
    high: int

    @property
    def unsigned(self) -> bool:
        return self.low >= 0

    def bits(self) -> int:
        """Return the number of bits that hold each of the values, in two's complement if some are negative."""
        if self.unsigned:
            return self.high.bit_length()
        return max(self.high.bit_length(), (~self.low).bit_length()) + 1

    def hull(self, other: "Bounds") -> "Bounds":
        """Return the smallest bounds that contain both bounds."""
        return Bounds(min(self.low, other.low), max(self.high, other.high))


Maybe = Bounds | None  # None: not bounded


def of_width(width: int, signed: bool = False) -> Bounds:
    return Bounds(-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else Bounds(0, (1 << width) - 1)


def _corners(function: Callable[[int, int], int]) -> Callable[..., Maybe]:
    def rule(a: Maybe, b: Maybe) -> Maybe:
        if a is None or b is None:
            return None
        values = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return Bounds(min(values), max(values))

    return rule


def _and(a: Maybe, b: Maybe) -> Maybe:
    masks = [side.high for side in (a, b) if side is not None and side.unsigned]
    if masks:
        return Bounds(0, min(masks))
    return _bitwise(a, b)


def _bitwise(a: Maybe, b: Maybe) -> Maybe:
    if a is None or b is None:
        return None
    both = a.hull(b)
    return of_width(both.bits(), signed=not both.unsigned) if both.bits() else both


def _shift_left(a: Maybe, b: Maybe) -> Maybe:
    if a is None or b is None or b.high > SHIFT_MAX:
        return None
    return Bounds(min(a.low, a.low << b.high), max(a.high, a.high << b.high))


def _shift_right(a: Maybe, b: Maybe) -> Maybe:
    if a is None:
        return None
    least = b.low if b is not None and b.low <= SHIFT_MAX else 0
    return Bounds(min(a.low >> least, 0) if a.low < 0 else 0, max(a.high >> least, -1 if a.high < 0 else 0))


def _shrink(a: Maybe, b: Maybe) -> Maybe:
    return None if a is None else Bounds(min(a.low, 0), max(a.high, 0))


def _modulo(a: Maybe, b: Maybe) -> Maybe:
    return None if b is None else Bounds(0, max(b.high - 1, 0))


def _to_width(signed: bool) -> Callable[..., Maybe]:
    return lambda _, width: None if width is None else of_width(width.high, signed)


RULES: dict[str, Callable[..., Maybe]] = {
    "+": _corners(lambda x, y: x + y),
    "-": _corners(lambda x, y: x - y),
    "*": _corners(lambda x, y: x * y),
    "/": _shrink,
    "%": _modulo,
    "&": _and,
    "|": _bitwise,
    "^": _bitwise,
    "~": lambda a: None if a is None else Bounds(~a.high, ~a.low),
    "<<": _shift_left,
    ">>": _shift_right,
    "two_comp_mod": _to_width(signed=True),
    "sat_cast": _to_width(signed=True),
    "usat_cast": _to_width(signed=False),
    "?": lambda condition, a, b: None if a is None or b is None else a.hull(b),
    "last_stack_index": lambda _: of_width(64),  # an empty stack has the largest of these indexes
    "size_stack": lambda _: of_width(32),
}


class Ranges:
    """Bounds of the expressions of one program, inside an action with `parameters`."""

    def __init__(self, program: Program, parameters: tuple[Parameter, ...] = ()) -> None:
        """Take the parameters of an action; expressions outside of actions have no parameters."""
        self.program = program
        self.parameters = parameters

    def field(self, expression: Expression) -> Field | None:
        """Return the field that an expression names."""
        match expression:
            case FieldOf(header, name):
                return self.program.field(header, name)
            case LastField(stack, name) | ElementField(stack, _, name):
                return self.program.stacks[stack].type.field(name)
            case LastUnionField(stack, member, name):
                return self.program.union_stacks[stack].types[member].field(name)
            case _:
                return None

    def of(self, expression: Expression) -> Maybe:
        """Return the bounds of an expression; None if it has none, as `1 << x` with a wide `x`."""
        field = self.field(expression)
        if field is not None:
            return of_width(field.width, field.signed)
        match expression:
            case Constant(value):
                return Bounds(value, value)
            case Argument(index):
                return of_width(self.parameters[index].width)
            case Lookahead(_, width):
                return of_width(width)
            case Operation(op, operands) if op in RULES:
                if op == "-" and len(operands) == 1:
                    operands = (Constant(0), *operands)
                return RULES[op](*(self.of(operand) for operand in operands))
            case _:
                return Bounds(0, 1)
