"""What a program can be compiled with beside its work: calls that write a packet's way, and P4 lines as comments.

Nothing here adds anything unless the target asks for it (`Target.trace`, `Target.comments`), so a program that nobody
watches is what it was.  What becomes of packets outside of the program, runtime/trace.c says.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath

from kofn.switch.compiler.codegen.block import Block
from kofn.switch.compiler.codegen.layout import HeaderRef, Layout, limbs
from kofn.switch.compiler.codegen.lowering import Lowering
from kofn.switch.compiler.ir.expressions import (
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
from kofn.switch.compiler.ir.program import Action, Condition, Field, Place, Primitive, Table

SCALARS = "scalars"  # p4c's header of local variables and loose metadata
CELLS: Mapping[str, tuple[int, int]] = {
    "register_read": (1, 2),
    "register_write": (0, 1),
    "count": (0, 1),
    "execute_meter": (0, 1),
}
"""Statements on an array: which argument is the array, which one the index."""
ASSIGNMENTS = ("assign", "set")
EXTRACTIONS = ("extract", "extract_VL")
RESULTS: Mapping[str, int] = {
    **dict.fromkeys(("assign", "set", "register_read", "modify_field_with_hash_based_offset"), 0),
    **dict.fromkeys(("modify_field_rng_uniform", "assign_VL"), 0),
    "execute_meter": 2,
}
"""Statements that set a field: which argument it is."""


def quoted(text: str) -> str:
    plain = "".join(c if " " <= c <= "~" or c == "\n" else "?" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def one_line(text: str) -> str:
    """Text for a comment that ends with its line."""
    return " ".join(text.replace("\\", "/").split())


def where(place: Place) -> str:
    """`file.p4:12 `, empty where p4c has not recorded it."""
    return f"{PurePath(place.file).name}:{place.line} " if place.file else ""


def comment(layout: Layout, block: Block, place: Place) -> None:
    """The P4 line that what follows is from."""
    if layout.target.comments and place.file:
        block.add(f"// {one_line(str(place))}")


def say(layout: Layout, block: Block, text: str) -> None:
    """The next piece of the packet's way; a new line begins with its line feed."""
    if layout.target.trace:
        block.add(f"say(D->core, {quoted(text)});")


def _say_value(low: Lowering, text: str, expression: Expression, width: int) -> None:
    if width > 64:
        pointer, count = low.wide(expression, width), limbs(width)
        low.block.add(f"say_wide(D->core, {quoted(text)}, {pointer}, {count});")
    else:
        low.block.add(f"say_number(D->core, {quoted(text)}, {low.masked(expression, width)});")


def _say_field(low: Lowering, text: str, header: HeaderRef, field: Field) -> None:
    """What lies in a field, whether or not its header is valid; of a variable one also how many bits it has."""
    member = header.field(field)
    if field.width > 64:
        low.block.add(f"say_wide(D->core, {quoted(text)}, {member}, {limbs(field.width)});")
    else:
        low.block.add(f"say_number(D->core, {quoted(text)}, {member});")
    if field.variable:
        low.block.add(f'say_number(D->core, ":", {header.bits});')


def _name(expression: Expression) -> str:
    """What is written of an operand before it is computed."""
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
    """Around the code of a statement: what it is and, where it comes to its end, what came out."""
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
    """The header that an extract has just filled."""
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
    """A state of the parser begins."""
    say(layout, block, f"\n  state {name}")


def condition(low: Lowering, item: Condition) -> None:
    """How an `if` comes out."""
    comment(low.layout, low.block, item.place)
    if low.layout.target.trace:
        say(low.layout, low.block, f"\n  {where(item.place)}if ({one_line(item.place.fragment) or item.name}) ")
        low.block.add(f'say(D->core, {low.truth(item.expression)} ? "true" : "false");')


def lookup(low: Lowering, table: Table) -> None:
    """After a look-up: `key`, `hit` and `entry` are there."""
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
    """What an entry of an ordered table matches; `second` limbs after its values are masks or upper bounds."""
    at = 0
    for field in table.key:
        between = ".." if field.kind == "range" else "/&"
        for text, offset in ((" ", at), (between, at + second)):
            low.block.add(f"say_wide(D->core, {quoted(text)}, entry->limbs + {offset}, {limbs(field.width)});")
        at += limbs(field.width)


def chosen(layout: Layout, block: Block, action: Action, parameters: str) -> None:
    """The action that an entry has, with the limbs of its parameters at a C pointer."""
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
    """After the parser: its error, by name; then checksums follow."""
    if not layout.target.trace:
        return []
    named = [(number, f"\n  parser error {name}") for name, number in layout.program.errors.items() if number]
    return [f"if (error == {number}) say(D->core, {quoted(text)});" for number, text in named]


def egress(layout: Layout) -> list[str]:
    """A copy begins its way through egress."""
    return ['say_number(D->core, "\\negress_port ", port);'] if layout.target.trace else []


def again(layout: Layout) -> list[str]:
    """A resubmitted or recirculated packet is about to be parsed."""
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
    """What a traced program needs; it is to be there soon rather than to be fast."""
    return ['#include "trace.h"', '#pragma GCC optimize("O1")'] if layout.target.trace else []


def entry(layout: Layout) -> list[str]:
    """What the runtime calls in the place of `process`, which stands before it."""
    return ENTRY.strip("\n").splitlines() if layout.target.trace else []
