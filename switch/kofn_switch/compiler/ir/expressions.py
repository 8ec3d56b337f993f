"""Expressions of a P4 program, typed: trees of the classes below (compiler.ir.program has the rest)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Constant:
    """An integer."""

    value: int


@dataclass(frozen=True, slots=True)
class Truth:
    """A Boolean constant."""

    value: bool


@dataclass(frozen=True, slots=True)
class FieldOf:
    """A field of a header instance; the name `$valid$` is its validity bit."""

    header: str
    field: str


@dataclass(frozen=True, slots=True)
class LastField:
    """A field of the most recently extracted header of a stack."""

    stack: str
    field: str


@dataclass(frozen=True, slots=True)
class HeaderOf:
    """A header instance."""

    header: str


@dataclass(frozen=True, slots=True)
class StackOf:
    """A whole stack."""

    stack: str


@dataclass(frozen=True, slots=True)
class UnionOf:
    """A header union; the operator `valid_union` asks whether one of its headers is valid."""

    union: str


@dataclass(frozen=True, slots=True)
class UnionStackOf:
    """A whole stack of unions."""

    stack: str


@dataclass(frozen=True, slots=True)
class NextUnionMember:
    """A member of the union that follows the last one extracted; only the target of an extract."""

    stack: str
    member: str


@dataclass(frozen=True, slots=True)
class LastUnionField:
    """A field of a member of the most recently extracted union of a stack; only in the key of a select."""

    stack: str
    member: str
    field: str


@dataclass(frozen=True, slots=True)
class Element:
    """The header at a computed index of a stack."""

    stack: str
    index: "Expression"


@dataclass(frozen=True, slots=True)
class ElementField:
    """A field of the header at a computed index of a stack."""

    stack: str
    index: "Expression"
    field: str


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the enclosing action."""

    index: int


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Bits of the packet that are not yet extracted: `width` bits, `offset` bits after the cursor."""

    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class Object:
    """A counter, register array, calculation, ... by name; `kind` is the JSON's word for it."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Vector:
    """The values that a `log_msg` fills into its text."""

    items: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator and its operands; for `?` they are condition, then, else."""

    op: str
    operands: tuple["Expression", ...]


Expression: TypeAlias = (
    Constant
    | Truth
    | FieldOf
    | LastField
    | HeaderOf
    | StackOf
    | UnionOf
    | UnionStackOf
    | NextUnionMember
    | LastUnionField
    | Element
    | ElementField
    | Argument
    | Lookahead
    | Object
    | Vector
    | Operation
)


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield the expression and all expressions inside it."""
    yield expression
    if isinstance(expression, Operation):
        for operand in expression.operands:
            yield from walk(operand)
    elif isinstance(expression, Vector):
        for item in expression.items:
            yield from walk(item)
    elif isinstance(expression, Element | ElementField):
        yield from walk(expression.index)
