"""Operands of expressions in C: headers, fields, stacks and an action's parameters."""

from kofn_switch.compiler.analysis.bounds import Ranges
from kofn_switch.compiler.codegen.block import Block
from kofn_switch.compiler.codegen.layout import HeaderRef, Layout, limbs
from kofn_switch.compiler.ir.expressions import (
    Constant,
    Element,
    ElementField,
    Expression,
    FieldOf,
    HeaderOf,
    LastField,
    LastUnionField,
    Operation,
    StackOf,
    UnionStackOf,
)
from kofn_switch.compiler.ir.program import Field, Parameter, Place
from kofn_switch.errors import ProgramError


class References:
    """The operands of one function; the statements that they need go to the block first."""

    def __init__(
        self,
        layout: Layout,
        block: Block,
        *,
        place: Place,
        parameters: tuple[Parameter, ...] = (),
        kept: bool = True,
    ) -> None:
        """Take the parameters of the enclosing action, which C finds through `p`. `place` is the place in the P4
        source, for refusals.

        The fields of all invalid headers read as 0 if `kept` is false, also in headers that keep their fields.
        """
        self.layout = layout
        self.block = block
        self.place = place
        self.ranges = Ranges(layout.program, parameters)
        self._kept = kept
        self._offsets = [sum(limbs(item.width) for item in parameters[:i]) for i in range(len(parameters))]

    def refuse(self, what: str) -> ProgramError:
        """Return the error for a construct that the switch does not execute."""
        return ProgramError(f"{self.place}: {what} is not executed")

    def exact_amount(self, expression: Expression) -> str:
        """Return a C expression of the whole number, at most 2^64 - 1."""
        raise NotImplementedError

    def header(self, expression: Expression) -> HeaderRef:
        """Return a header operand in C."""
        match expression:
            case HeaderOf(name):
                return self.layout.header(name)
            case Element(stack, index):
                return self.layout.element(stack, self._index(stack, index))
            case _:
                raise self.refuse(f"{type(expression).__name__} as a header")

    def field(self, expression: Expression) -> tuple[HeaderRef, Field] | None:
        """Return header and field of a field operand, None for other operands."""
        match expression:
            case FieldOf(header, name) if name != "$valid$":
                ref = self.layout.header(header)
                return ref, ref.type.field(name)
            case ElementField(stack, index, name):
                ref = self.layout.element(stack, self._index(stack, index))
                return ref, ref.type.field(name)
            case LastField(stack, name):
                ref = self.layout.element(stack, self._last(stack))
                return ref, ref.type.field(name)
            case LastUnionField(stack, member, name):
                ref = self.layout.union_member(stack, member, self._last(stack))
                return ref, ref.type.field(name)
            case _:
                return None

    def _index(self, stack: str, index: Expression) -> str:
        depth = self.layout.depth(stack)
        if isinstance(index, Constant):
            return str(min(index.value, depth))
        name = self.block.name("index")
        value = self.exact_amount(index)
        self.block.add(f"const uint64_t {name} = {value} < {depth} ? {value} : {depth};")
        return name

    def _last(self, stack: str) -> str:
        depth, following = self.layout.depth(stack), self.layout.next_index(stack)
        return f"({following} ? {following} - 1 : {depth})"

    def argument(self, index: int) -> str:
        """Return a pointer to an action's parameter."""
        return f"(p + {self._offsets[index]})"

    def condition(self, ref: HeaderRef) -> str:
        """Return the C condition under which a header's fields read as stored."""
        return ref.readable if self._kept else ref.valid

    def readable(self, ref: HeaderRef, field: Field) -> str:
        """Return a pointer to the limbs of a field."""
        readable = self.condition(ref)
        return ref.field(field) if readable == "1" else f"({readable} ? {ref.field(field)} : wide_zero)"

    def stack_name(self, expression: Expression) -> str:
        """Return the name of a stack operand."""
        if not isinstance(expression, StackOf | UnionStackOf):
            raise self.refuse(f"{word_of(expression)} as a header stack")
        return expression.stack


def word_of(expression: Expression) -> str:
    """Return the name of an expression in errors."""
    match expression:
        case Operation(op):
            return f"operator {op}"
        case FieldOf(header, field):
            return f"{header}.{field}"
        case _:
            return type(expression).__name__
