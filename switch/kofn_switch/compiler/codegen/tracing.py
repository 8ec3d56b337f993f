"""Optional additions to a compiled program: calls that print a packet's way, and P4 lines as comments.

Nothing is added unless the target asks for it (`Target.trace`, `Target.comments`), so other programs stay the same.
runtime/trace.c prints a packet's fate outside of the program.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath

from kofn_switch.compiler.codegen.block import Block
from kofn_switch.compiler.codegen.layout import HeaderRef, Layout, limbs
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.ir.expressions import (
    Argument,
    Constant,
    ElementField,
    Expression,
    FieldOf,
    HeaderOf,
    LastField,
    LastUnionField,
    NextUnionMember,
    Object,
    StackOf,
    UnionOf,
    UnionStackOf,
)
from kofn_switch.compiler.ir.program import Action, Condition, Field, Place, Primitive, Table

SCALARS = "scalars"  # p4c's header of local variables and loose metadata
CELLS: Mapping[str, tuple[int, int]] = {
    "register_read": (1, 2),
    "register_write": (0, 1),
    "count": (0, 1),
    "execute_meter": (0, 1),
}
"""Statements on an array: the positions of the array and of the index among the arguments."""
ASSIGNMENTS = ("assign", "set")
EXTRACTIONS = ("extract", "extract_VL")
RESULTS: Mapping[str, int] = {
    **dict.fromkeys(("assign", "set", "register_read", "modify_field_with_hash_based_offset"), 0),
    **dict.fromkeys(("modify_field_rng_uniform", "assign_VL"), 0),
    "execute_meter": 2,
}
"""Statements that set a field: the field's position among the arguments."""


def quoted(text: str) -> str:
    plain = "".join(c if " " <= c <= "~" or c == "\n" else "?" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def one_line(text: str) -> str:
    """Return text for a comment that ends with its line."""
    return " ".join(text.replace("\\", "/").split())


def where(place: Place) -> str:
    """Return `file.p4:12 `, empty if p4c has not recorded the place."""
    return f"{PurePath(place.file).name}:{place.line} " if place.file else ""


def comment(layout: Layout, block: Block, place: Place) -> None:
    """Write the P4 line of the following code as a comment."""
    if layout.target.comments and place.file:
        block.add(f"// {one_line(str(place))}")


def say(layout: Layout, block: Block, text: str) -> None:
    """Print the next piece of the packet's way; a new line begins with its line feed."""
    if layout.target.trace:
        block.add(f"say(D->core, {quoted(text)});")


def _say_value(low: Lowering, text: str, expression: Expression, width: int) -> None:
    if width > 64:
        pointer, count = low.wide(expression, width), limbs(width)
        low.block.add(f"say_wide(D->core, {quoted(text)}, {pointer}, {count});")
    else:
        low.block.add(f"say_number(D->core, {quoted(text)}, {low.masked(expression, width)});")


def _say_field(low: Lowering, text: str, header: HeaderRef, field: Field) -> None:
    """Print a field's content, even while its header is invalid, and a variable field's number of bits."""
    member = header.field(field)
    if field.width > 64:
        low.block.add(f"say_wide(D->core, {quoted(text)}, {member}, {limbs(field.width)});")
    else:
        low.block.add(f"say_number(D->core, {quoted(text)}, {member});")
    if field.variable:
        low.block.add(f'say_number(D->core, ":", {header.bits});')


def _name(expression: Expression) -> str:
    """Return the text for an operand before it is computed."""
    match expression:
        case FieldOf(header, field):
            name = field if header == SCALARS else f"{header}.{field}"
        case ElementField(stack, index, field):
            name = f"{stack}[{_name(index)}].{field}"
        case LastField(stack, field):
            name = f"{stack}.last.{field}"
        case LastUnionField(stack, member, field):
            name = f"{stack}.last.{member}.{field}"
        case NextUnionMember(stack, member):
            name = f"{stack}.next.{member}"
        case HeaderOf(name) | StackOf(name) | UnionOf(name) | UnionStackOf(name) | Object(_, name):
            pass
        case Constant(value):
            name = hex(value)
        case Argument(index):
            name = f"parameter {index + 1}"
        case _:
            name = "(...)"
    return name


@contextmanager
def watched(low: Lowering, statement: Primitive) -> Iterator[None]:
    """Print a statement before its code, and its result if the code runs to its end."""
    comment(low.layout, low.block, statement.place)
    if not low.layout.target.trace:
        yield
        return
    _before(low, statement)
    yield
    _after(low, statement)


def _before(low: Lowering, statement: Primitive) -> None:
    op, arguments = statement.op, statement.arguments
    shown = f"\n    {where(statement.place)}"
    if op in CELLS:
        array, index = (arguments[position] for position in CELLS[op])
        low.block.add(f"say(D->core, {quoted(f'{shown}{op} {_name(array)}[')});")
        low.block.add(f'say_number(D->core, "", {low.exact_amount(index)});', 'say(D->core, "]");')
    elif op in ASSIGNMENTS:
        say(low.layout, low.block, f"{shown}{_name(arguments[0])}")
    else:
        say(low.layout, low.block, f"{shown}{op} {', '.join(_name(one) for one in arguments)}".rstrip())


def _after(low: Lowering, statement: Primitive) -> None:
    op, arguments = statement.op, statement.arguments
    if op in EXTRACTIONS:
        if (header := _extracted(low, arguments[0])) is not None:
            for field in header.type.fields:
                _say_field(low, f" {field.name}=", header, field)
    elif op == "register_write":
        width = {array.name: array.width for array in low.layout.program.registers}[_name(arguments[0])]
        _say_value(low, " = ", arguments[2], width)
    elif op in RESULTS and len(arguments) > RESULTS[op]:
        target = arguments[RESULTS[op]]
        _say_result(low, " = " if op in ASSIGNMENTS else f" {_name(target)} = ", target)


def _say_result(low: Lowering, text: str, target: Expression) -> None:
    if isinstance(target, FieldOf) and target.field == "$valid$":
        _say_value(low, text, target, 1)
    elif (found := low.field(target)) is not None:
        _say_field(low, text, *found)


def _extracted(low: Lowering, target: Expression) -> HeaderRef | None:
    """Return the header that an extract has just filled."""
    match target:
        case HeaderOf():
            return low.header(target)
        case StackOf(stack):
            return low.layout.element(stack, f"({low.layout.next_index(stack)} - 1)")
        case NextUnionMember(stack, member):
            return low.layout.union_member(stack, member, f"({low.layout.next_index(stack)} - 1)")
        case _:
            return None


def state(layout: Layout, block: Block, name: str) -> None:
    """Print the parser's state."""
    say(layout, block, f"\n  state {name}")


def condition(low: Lowering, item: Condition) -> None:
    """Print the result of an `if`."""
    comment(low.layout, low.block, item.place)
    if low.layout.target.trace:
        say(low.layout, low.block, f"\n  {where(item.place)}if ({one_line(item.place.fragment) or item.name}) ")
        low.block.add(f'say(D->core, {low.truth(item.expression)} ? "true" : "false");')


def lookup(low: Lowering, table: Table) -> None:
    """Print a look-up, for which `key`, `hit` and `entry` are set."""
    if not low.layout.target.trace:
        return
    say(low.layout, low.block, f"\n  table {table.name}:")
    at = 0
    for field in table.key:
        low.block.add(f"say_wide(D->core, {quoted(f' {field.name}=')}, key + {at}, {limbs(field.width)});")
        at += limbs(field.width)
    low.block.add('say(D->core, hit ? " hit" : " miss");')
    if table.ordered:
        with low.block.braces("if (hit)"):
            _say_entry(low, table, at)


def _say_entry(low: Lowering, table: Table, second: int) -> None:
    """Print the match of an ordered table's entry; its masks or upper bounds are `second` limbs after its values."""
    at = 0
    for field in table.key:
        between = ".." if field.kind == "range" else "/&"
        for text, offset in ((" ", at), (between, at + second)):
            low.block.add(f"say_wide(D->core, {quoted(text)}, entry->limbs + {offset}, {limbs(field.width)});")
        at += limbs(field.width)


def chosen(layout: Layout, block: Block, action: Action, parameters: str) -> None:
    """Print an entry's action, with the limbs of its parameters at a C pointer."""
    if not layout.target.trace:
        return
    say(layout, block, f" -> {action.name}(")
    at = 0
    for number, item in enumerate(action.parameters):
        text = f"{', ' if number else ''}{item.name}="
        block.add(f"say_wide(D->core, {quoted(text)}, {parameters} + {at}, {limbs(item.width)});")
        at += limbs(item.width)
    say(layout, block, ")")


def parsed(layout: Layout) -> list[str]:
    """Print the parser's error by name, before checksums are verified."""
    if not layout.target.trace:
        return []
    named = [(number, f"\n  parser error {name}") for name, number in layout.program.errors.items() if number]
    return [f"if (error == {number}) say(D->core, {quoted(text)});" for number, text in named]


def egress(layout: Layout) -> list[str]:
    """Print that a copy enters egress."""
    return ['say_number(D->core, "\\negress_port ", port);'] if layout.target.trace else []


def again(layout: Layout) -> list[str]:
    """Print that a resubmitted or recirculated packet is about to be parsed."""
    kind = layout.meta("instance_type") or "0"
    return [f'say_number(D->core, "\\nparsed again, instance_type ", {kind});'] if layout.target.trace else []


ENTRY = """
static void traced(struct core *core, struct instance *in, uint32_t port, const uint8_t *packet, uint32_t length) {
    services(core)->tracer->begin(core, port, packet, length);
    process(core, in, port, packet, length);
    services(core)->tracer->end(core);
}
#define process traced  // for the descriptor
"""


def includes(layout: Layout) -> list[str]:
    """Include the trace's functions; optimise less, so that a traced program compiles sooner."""
    return ['#include "trace.h"', '#pragma GCC optimize("O1")'] if layout.target.trace else []


def entry(layout: Layout) -> list[str]:
    """Define `process` as the traced function, which calls the program's own `process`."""
    return ENTRY.strip("\n").splitlines() if layout.target.trace else []
