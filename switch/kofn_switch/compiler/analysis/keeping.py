"""Headers that keep their fields while they are invalid.

On BMv2, an invalid header reads as its last content, even if this content is from another packet. Here the content is
always from the same packet. A header that the program invalidates, or that it never makes valid, keeps its fields: it
starts as zeros and is read as it is. The fields of every other invalid header read as 0, without zeroed memory.

As on BMv2, a table's key has zeros for all fields of invalid headers.
"""

from collections.abc import Iterable, Iterator

from kofn_switch.compiler.ir.expressions import (
    Element,
    Expression,
    HeaderOf,
    NextUnionMember,
    StackOf,
    UnionOf,
    UnionStackOf,
)
from kofn_switch.compiler.ir.program import Primitive, Program

MAKE_VALID = frozenset({"extract", "extract_VL", "add_header"})
TAKE_AWAY = frozenset(
    {"remove_header", "assign_header", "assign_union", "assign_header_stack", "assign_union_stack", "push", "pop"}
)


def kept_headers(program: Program) -> frozenset[str]:
    """Return the names of the headers that keep their fields. The result has all headers of a stack, or none of
    them."""
    kept = _targets(program, TAKE_AWAY) | _unseen(program)
    for union in program.unions.values():
        if len(union.members) > 1:
            kept |= set(union.members.values())
    for members in _rows(program):
        if kept & members:
            kept |= members
    return frozenset(kept)


def _unseen(program: Program) -> set[str]:
    """Return the headers that no statement makes valid."""
    headers = {name for name, header in program.headers.items() if not header.metadata}
    return headers - _targets(program, MAKE_VALID | TAKE_AWAY)


def _rows(program: Program) -> Iterator[set[str]]:
    yield from (set(stack.members) for stack in program.stacks.values())
    for stack in program.union_stacks.values():
        yield {member for union in stack.unions for member in program.unions[union].members.values()}


def _targets(program: Program, ops: Iterable[str]) -> set[str]:
    """Return the headers that statements of these kinds may change."""
    return {
        header
        for statement in _statements(program)
        if statement.op in ops
        for header in _headers(program, statement.arguments[0])
    }


def _statements(program: Program) -> Iterator[Primitive]:
    for action in program.actions.values():
        yield from action.primitives
    for state in program.states.values():
        yield from state.statements
    yield from program.deparser_statements


def _headers(program: Program, target: Expression) -> Iterable[str]:
    match target:
        case HeaderOf(header):
            return (header,)
        case StackOf(stack) | Element(stack, _):
            return program.stacks[stack].members
        case UnionOf(union):
            return program.unions[union].members.values()
        case UnionStackOf(stack) | NextUnionMember(stack, _):
            unions = program.union_stacks[stack].unions
            return [member for union in unions for member in program.unions[union].members.values()]
        case _:
            return ()
