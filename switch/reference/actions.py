"""The statements of actions, of parser states and of the deparser, one after the other, and their jumps."""

from collections.abc import Callable, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from random import Random

from switch.compiler.program import (
    DROP_PORT,
    Expression,
    FieldOf,
    Object,
    Primitive,
    Program,
    StackOf,
    UnionOf,
    UnionStackOf,
    Vector,
)
from switch.reference.expressions import Scope
from switch.reference.hashes import calculate
from switch.reference.meters import MeterCell
from switch.reference.packet import Instance, Packet, undefined, wrap


@dataclass(slots=True)
class Cell:
    """What a counter counted."""

    packets: int = 0
    bytes: int = 0

    def count(self, packet: Packet) -> None:
        """One packet more."""
        self.packets += 1
        self.bytes += packet.counted


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What statements act on beside the packet: the program's arrays, by name, chance, the clock, the log."""

    program: Program
    registers: MutableMapping[str, MutableSequence[int]]
    counters: MutableMapping[str, MutableSequence[Cell]]
    meters: MutableMapping[str, MutableSequence[MeterCell]]
    now_us: Callable[[], int]
    log: Callable[[str], None]
    random: Random = field(default_factory=Random)

    def scope(self, packet: Packet, arguments: Sequence[int] = (), ahead: bytes = b"") -> Scope:
        """What an expression can see."""
        return Scope(program=self.program, headers=packet.headers, arguments=arguments, ahead=ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One statement with what it acts on."""

    around: Surroundings
    packet: Packet
    scope: Scope
    arguments: tuple[Expression, ...]

    def value(self, position: int) -> int:
        """An argument as a number."""
        return self.scope.value(self.arguments[position])

    def name(self, position: int) -> str:
        """The name of the array or calculation that an argument refers to."""
        argument = self.arguments[position]
        if not isinstance(argument, Object):
            undefined(argument)
        return argument.name


def execute(
    around: Surroundings,
    packet: Packet,
    primitives: Sequence[Primitive],
    arguments: Sequence[int],
    ahead: bytes = b"",
) -> None:
    """Run the statements; a jump goes to a statement by its number.  An exit ends the control after them."""
    at = 0
    while at < len(primitives) and not packet.failed:
        primitive = primitives[at]
        scope = around.scope(packet, arguments, ahead)
        if primitive.op == "_jump":
            at = scope.value(primitive.arguments[0])
            continue
        if primitive.op == "_jump_if_zero":
            condition, target = primitive.arguments
            at = at + 1 if scope.truth(condition) else scope.value(target)
            continue
        if primitive.op not in PRIMITIVES:
            undefined(f"primitive {primitive.op}")
        call = Call(around=around, packet=packet, scope=scope, arguments=primitive.arguments)
        PRIMITIVES[primitive.op](call)
        at += 1


# Headers


def _assign(call: Call) -> None:
    call.scope.assign(call.arguments[0], call.value(1))


def _assign_variable(call: Call) -> None:
    """A variable field takes the other's length, too."""
    target, source = call.arguments
    if not isinstance(target, FieldOf) or not isinstance(source, FieldOf):
        undefined(target)
    headers = call.packet.headers
    headers[target.header].length = headers[source.header].length
    headers[target.header].set(target.field, headers[source.header].get(source.field))


def _add_header(call: Call) -> None:
    """A header that was invalid starts as zeros; one that was valid stays as it is."""
    name = call.scope.header_name(call.arguments[0])
    if name is None or call.packet.headers[name].valid:
        return
    instance = call.packet.headers[name]
    instance.reset()
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
    """The fields of a header that is valid, else only that it is not."""
    headers = call.packet.headers
    if source.valid:
        headers[target].values, headers[target].length = dict(source.values), source.length
    headers.set_valid(target, source.valid)


def _assign_stack(call: Call) -> None:
    target, source = call.arguments
    if not isinstance(target, StackOf) or not isinstance(source, StackOf):
        undefined(target)
    stacks, following = call.around.program.stacks, call.packet.headers.next
    following[target.stack] = following[source.stack]
    for to, origin in zip(stacks[target.stack].members, stacks[source.stack].members, strict=True):
        _copy_header(call, to, call.packet.headers[origin])


def _assign_union(call: Call) -> None:
    target, source = call.arguments
    if not isinstance(target, UnionOf) or not isinstance(source, UnionOf):
        undefined(target)
    _copy_union(call, target.union, source.union)


def _copy_union(call: Call, target: str, source: str) -> None:
    unions = call.around.program.unions
    pairs = zip(unions[target].members.values(), unions[source].members.values(), strict=True)
    for to, origin in pairs:
        _copy_header(call, to, call.packet.headers[origin])


def _assign_union_stack(call: Call) -> None:
    target, source = call.arguments
    if not isinstance(target, UnionStackOf) or not isinstance(source, UnionStackOf):
        undefined(target)
    stacks, following = call.around.program.union_stacks, call.packet.headers.next
    following[target.stack] = following[source.stack]
    for to, origin in zip(stacks[target.stack].unions, stacks[source.stack].unions, strict=True):
        _copy_union(call, to, origin)


def _rows(call: Call) -> tuple[str, list[list[str]]]:
    """The headers of each place of a stack."""
    program, stack = call.around.program, call.arguments[0]
    match stack:
        case StackOf(name):
            return name, [[member] for member in program.stacks[name].members]
        case UnionStackOf(name):
            return name, [list(program.unions[union].members.values()) for union in program.union_stacks[name].unions]
    undefined(stack)


def _push(call: Call) -> None:
    """Every header moves on by n places; the first n become invalid."""
    name, rows = _rows(call)
    _shift(call, rows, -call.value(1))
    call.packet.headers.next[name] = min(len(rows), call.packet.headers.next[name] + call.value(1))


def _pop(call: Call) -> None:
    """Every header moves back by n places; the last n become invalid."""
    name, rows = _rows(call)
    _shift(call, rows, call.value(1))
    call.packet.headers.next[name] = max(0, call.packet.headers.next[name] - call.value(1))


def _shift(call: Call, rows: list[list[str]], by: int) -> None:
    headers = call.packet.headers
    before = [[headers[name].copy() for name in row] for row in rows]
    for place, row in enumerate(rows):
        inside = 0 <= place + by < len(rows)
        for column, name in enumerate(row):
            headers[name].valid = False
            if inside:
                source = before[place + by][column]
                headers[name].values, headers[name].length = source.values, source.length
                headers[name].valid = source.valid


# State


def _register_read(call: Call) -> None:
    """Outside of the array there are zeros."""
    cells, index = call.around.registers[call.name(1)], call.value(2)
    call.scope.assign(call.arguments[0], cells[index] if 0 <= index < len(cells) else 0)


def _register_write(call: Call) -> None:
    name, index = call.name(0), call.value(1)
    cells = call.around.registers[name]
    if 0 <= index < len(cells):
        width = next(array.width for array in call.around.program.registers if array.name == name)
        cells[index] = wrap(call.value(2), width)


def _count(call: Call) -> None:
    cells, index = call.around.counters[call.name(0)], call.value(1)
    if 0 <= index < len(cells):
        cells[index].count(call.packet)


def _execute_meter(call: Call) -> None:
    cells, index = call.around.meters[call.name(0)], call.value(1)
    if 0 <= index < len(cells):
        call.scope.assign(call.arguments[2], cells[index].run(call.packet.counted, call.around.now_us()))


def _hash(call: Call) -> None:
    """target = base + hash % size in 64 bits; a size of 0 counts as 1."""
    base, size = wrap(call.value(1), 64), wrap(call.value(3), 64)
    calculation = call.around.program.calculations[call.name(2)]
    value = calculate(calculation, call.scope, call.packet)
    call.scope.assign(call.arguments[0], wrap(value % (size or 1) + base, 64))


def _random(call: Call) -> None:
    """A number between both bounds, which count; the target stays when they are the wrong way round."""
    low, high = wrap(call.value(1), 64), wrap(call.value(2), 64)
    if low <= high:
        call.scope.assign(call.arguments[0], call.around.random.randint(low, high))


# What is to become of the packet


def _mark_to_drop(call: Call) -> None:
    call.packet.headers.set_meta("egress_spec", DROP_PORT)
    call.packet.headers.set_meta("mcast_grp", 0)


def _clone(call: Call) -> None:
    call.packet.clone = (wrap(call.value(0), 15), wrap(call.value(1), 16))


def _digest(call: Call) -> None:
    call.packet.digest = call.value(1)


def _resubmit(call: Call) -> None:
    call.packet.resubmit = call.value(0) or None


def _recirculate(call: Call) -> None:
    call.packet.recirculate = call.value(0) or None


def _truncate(call: Call) -> None:
    """The shortest of several lengths holds."""
    length = wrap(call.value(0), 64)
    call.packet.limit = length if call.packet.limit is None else min(length, call.packet.limit)


def _exit(call: Call) -> None:
    call.packet.exited = True


def _assert(call: Call) -> None:
    call.packet.failed = not call.scope.truth(call.arguments[0])


def _log(call: Call) -> None:
    text, vector = call.arguments
    if not isinstance(text, Object) or not isinstance(vector, Vector):
        undefined(text)
    call.around.log(fill(text.name, [call.scope.value(item) for item in vector.items]))


def fill(text: str, values: Sequence[int]) -> str:
    """The text of a log_msg: each {} takes a value."""
    parts = text.split("{}")
    shown = [str(value) for value in values[: len(parts) - 1]]
    shown += ["{}"] * (len(parts) - 1 - len(shown))
    return "".join(part + value for part, value in zip(parts, [*shown, ""], strict=True))


PRIMITIVES: dict[str, Callable[[Call], None]] = {
    "assign": _assign,
    "set": _assign,
    "assign_VL": _assign_variable,
    "assign_header": _assign_header,
    "assign_header_stack": _assign_stack,
    "assign_union": _assign_union,
    "assign_union_stack": _assign_union_stack,
    "add_header": _add_header,
    "remove_header": _remove_header,
    "push": _push,
    "pop": _pop,
    "register_read": _register_read,
    "register_write": _register_write,
    "count": _count,
    "execute_meter": _execute_meter,
    "modify_field_with_hash_based_offset": _hash,
    "modify_field_rng_uniform": _random,
    "mark_to_drop": _mark_to_drop,
    "clone_ingress_pkt_to_egress": _clone,
    "clone_egress_pkt_to_egress": _clone,
    "generate_digest": _digest,
    "resubmit": _resubmit,
    "recirculate": _recirculate,
    "truncate": _truncate,
    "exit": _exit,
    "assert": _assert,
    "assume": _assert,
    "log_msg": _log,
    "no_op": lambda call: None,
}
