"""Statements on headers, stacks and unions."""

from collections.abc import Callable, Iterable, Mapping

from kofn_switch.compiler.ir.expressions import Expression, FieldOf, StackOf, UnionOf, UnionStackOf
from tests.switch.reference.call import Call
from tests.switch.reference.packet import Instance, undefined


def _assign(call: Call) -> None:
    call.scope.assign(call.arguments[0], call.value(1))


def _assign_variable(call: Call) -> None:
    """Assign a variable field, with its length."""
    target, source = call.arguments
    if not isinstance(target, FieldOf) or not isinstance(source, FieldOf):
        undefined(target)
    headers = call.packet.headers
    headers[target.header].length = headers[source.header].length
    headers[target.header].set(target.field, headers[source.header].get(source.field))


def _add_header(call: Call) -> None:
    """Make a header valid. One that was invalid starts as zeros, with its length; a valid one stays as it is."""
    name = call.scope.header_name(call.arguments[0])
    if name is None or call.packet.headers[name].valid:
        return
    instance = call.packet.headers[name]
    instance.values = dict.fromkeys(instance.values, 0)
    call.packet.headers.set_valid(name, True)
    call.packet.size += instance.width // 8


def _remove_header(call: Call) -> None:
    name = call.scope.header_name(call.arguments[0])
    if name is not None and call.packet.headers[name].valid:
        call.packet.headers.set_valid(name, False)
        call.packet.size -= call.packet.headers[name].width // 8


def _assign_header(call: Call) -> None:
    target = call.scope.header_name(call.arguments[0])
    if target is not None:
        _copy_header(call, target, call.scope.instance(call.arguments[1]))


def _copy_header(call: Call, target: str, source: Instance) -> None:
    """Copy the fields of a valid header; of an invalid one only that it is invalid."""
    headers = call.packet.headers
    if source.valid:
        headers[target].values, headers[target].length = dict(source.values), source.length
    headers.set_valid(target, source.valid)


def _assign_stack(call: Call) -> None:
    """Copy all headers and the next index, also for a stack of unions."""
    (target, rows), (source, others) = (_rows(call, stack) for stack in call.arguments)
    following = call.packet.headers.next
    following[target] = following[source]
    for row, other in zip(rows, others, strict=True):
        _copy_headers(call, row, other)


def _assign_union(call: Call) -> None:
    target, source = call.arguments
    if not isinstance(target, UnionOf) or not isinstance(source, UnionOf):
        undefined(target)
    unions = call.around.program.unions
    _copy_headers(call, unions[target.union].members.values(), unions[source.union].members.values())


def _copy_headers(call: Call, targets: Iterable[str], sources: Iterable[str]) -> None:
    for target, source in zip(targets, sources, strict=True):
        _copy_header(call, target, call.packet.headers[source])


def _rows(call: Call, stack: Expression) -> tuple[str, list[list[str]]]:
    """Return the name of a stack, and the headers of each of its places."""
    program = call.around.program
    match stack:
        case StackOf(name):
            return name, [[member] for member in program.stacks[name].members]
        case UnionStackOf(name):
            return name, [list(program.unions[union].members.values()) for union in program.union_stacks[name].unions]
    undefined(stack)


def _push(call: Call) -> None:
    """Move every header on by n places, from the back; those in the first n places become invalid."""
    name, rows = _rows(call, call.arguments[0])
    count = min(call.value(1), len(rows))
    for place in reversed(range(count, len(rows))):
        _exchange(call, rows[place], rows[place - count])
    _invalidate(call, rows[:count])
    call.packet.headers.next[name] = min(len(rows), call.packet.headers.next[name] + count)


def _pop(call: Call) -> None:
    """Move every header back by n places, from the front; those in the last n places become invalid."""
    name, rows = _rows(call, call.arguments[0])
    count = min(call.value(1), len(rows))
    for place in range(len(rows) - count):
        _exchange(call, rows[place], rows[place + count])
    _invalidate(call, rows[len(rows) - count :])
    call.packet.headers.next[name] = max(0, call.packet.headers.next[name] - count)


def _exchange(call: Call, row: list[str], other: list[str]) -> None:
    for name, partner in zip(row, other, strict=True):
        if name != partner:
            call.packet.headers.exchange(name, partner)


def _invalidate(call: Call, rows: list[list[str]]) -> None:
    """Make headers invalid; as in BMv2, the unions of a stack stay as they are."""
    if isinstance(call.arguments[0], StackOf):
        for (name,) in rows:
            call.packet.headers[name].valid = False


HEADER_STATEMENTS: Mapping[str, Callable[[Call], None]] = {
    "assign": _assign,
    "set": _assign,
    "assign_VL": _assign_variable,
    "assign_header": _assign_header,
    "assign_header_stack": _assign_stack,
    "assign_union": _assign_union,
    "assign_union_stack": _assign_stack,
    "add_header": _add_header,
    "remove_header": _remove_header,
    "push": _push,
    "pop": _pop,
}
