"""Finds out whether a parser can go from state to state without end."""

from kofn_switch.compiler.ir.expressions import Constant, Expression, HeaderOf, NextUnionMember, StackOf
from kofn_switch.compiler.ir.program import Primitive, Program


def may_stand_still(program: Program) -> bool:
    """Return whether states that may take nothing from the packet lead to each other in a circle."""
    still = {
        name: {transition.next for transition in state.transitions}
        for name, state in program.states.items()
        if not any(_takes(program, statement) for statement in state.statements)
    }
    while ends := [name for name, following in still.items() if not following & still.keys()]:
        for name in ends:
            del still[name]
    return bool(still)


def _takes(program: Program, statement: Primitive) -> bool:
    """Return whether a statement that does not fail takes some of the packet."""
    match statement.op, statement.arguments:
        case (("extract" | "extract_VL"), (target, *_)):
            return _fixed_width(program, target) > 0
        case (("advance" | "shift"), (Constant(amount),)):
            return amount > 0
        case _:
            return False


def _fixed_width(program: Program, target: Expression) -> int:
    """Return the least number of bits of a header."""
    match target:
        case HeaderOf(header):
            return program.headers[header].type.fixed_width
        case StackOf(stack) if stack in program.stacks:
            return program.stacks[stack].type.fixed_width
        case NextUnionMember(stack, member):
            return program.union_stacks[stack].types[member].fixed_width
        case _:
            return 0
