"""The statements of actions and parser states: a table of rules, primitive -> C.

A rule says how to emit the statement and which of its arguments it writes; `exact` effects on whole headers are listed
so that the generator knows what egress may change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from switch.compiler.hashing import emit_hash
from switch.compiler.layout import HeaderRef, c_type, identifier, limbs
from switch.compiler.lowering import Lowering
from switch.compiler.program import Array, Constant, Expression, HeaderOf, Meter, Object
from switch.errors import ProgramError

Arguments = tuple[Expression, ...]
Emit = Callable[[Lowering, Arguments], None]
A = TypeVar("A", Array, Meter)


@dataclass(frozen=True, slots=True)
class Rule:
    """How to execute a primitive; `writes` are the positions of the arguments that it sets."""

    emit: Emit
    writes: tuple[int, ...] = ()
    leaves: bool = False  # may end the control (exit)
    certain: bool = True  # sets them whatever happens


def _assign(low: Lowering, arguments: Arguments) -> None:
    low.assign(arguments[0], arguments[1])


def _mark_to_drop(low: Lowering, arguments: Arguments) -> None:
    meta = low.header(arguments[0]).struct
    low.block.add(f"{meta}.egress_spec_ = {low.layout.target.drop_port};", f"{meta}.mcast_grp_ = 0;")


def _array(low: Lowering, expression: Expression, arrays: tuple[A, ...]) -> tuple[int, A]:
    if isinstance(expression, Object):
        for number, array in enumerate(arrays):
            if array.name == expression.name:
                return number, array
    raise low.refuse(f"{expression} as an array")


def _index(low: Lowering, expression: Expression) -> str:
    name = low.block.name("i")
    low.block.add(f"const uint64_t {name} = {low.exact_amount(expression)};")
    return name


def _register_read(low: Lowering, arguments: Arguments) -> None:
    """Out of range reads 0."""
    target, array, index = arguments
    number, register = _array(low, array, low.layout.program.registers)
    found = low.field(target)
    if found is None or found[1].width != register.width:
        raise low.refuse(f"reading register {register.name} into something not of its width")
    at = _index(low, index)
    cells, member = f"D->in->registers[{number}]", found[0].field(found[1])
    if register.width <= 64:
        cell = f"((const {c_type(register.width)} *){cells})[{at}]"
        low.block.add(f"{member} = {at} < {register.size} ? {cell} : 0;")
        return
    count = limbs(register.width)
    cell = f"(const uint64_t *){cells} + {at} * {count}"
    low.block.add(f"wide_copy({member}, {at} < {register.size} ? {cell} : wide_zero, {count});")


def _register_write(low: Lowering, arguments: Arguments) -> None:
    """Out of range writes nothing."""
    array, index, value = arguments
    number, register = _array(low, array, low.layout.program.registers)
    at, cells = _index(low, index), f"D->in->registers[{number}]"
    with low.block.braces(f"if ({at} < {register.size})"):
        if register.width <= 64:
            text = low.masked(value, register.width)
            low.block.add(f"(({c_type(register.width)} *){cells})[{at}] = ({c_type(register.width)}){text};")
            return
        count = limbs(register.width)
        cell = low.block.name("cell")
        low.block.add(f"uint64_t *{cell} = (uint64_t *){cells} + {at} * {count};")
        low.store_cut(cell, value, register.width)


def _count(low: Lowering, arguments: Arguments) -> None:
    number, counter = _array(low, arguments[0], low.layout.program.counters)
    at = _index(low, arguments[1])
    with low.block.braces(f"if ({at} < {counter.size})"):
        low.block.add(
            f"D->in->counters[{number}][{at}].packets++;", f"D->in->counters[{number}][{at}].bytes += D->length;"
        )


def _execute_meter(low: Lowering, arguments: Arguments) -> None:
    """Out of range changes nothing."""
    meters = low.layout.program.meters
    number, meter = _array(low, arguments[0], meters)
    at = _index(low, arguments[1])
    units = "1" if meter.unit == "packets" else "D->length"
    with low.block.braces(f"if ({at} < {meter.size})"):
        now = "services(D->core)->now_us(D->core)"
        low.set(arguments[2], f"(uint64_t)meter_run(&D->in->meters[{number}][{at}], {now}, {units})")


def _digest(low: Lowering, arguments: Arguments) -> None:
    """Sent after ingress, with the fields' values at that time."""
    low.block.add(f"D->learn = (uint32_t){low.narrow(arguments[1])};")


def _add_header(low: Lowering, arguments: Arguments) -> None:
    """A header that was invalid starts as zeros."""
    header = low.header(arguments[0])
    with low.block.braces(f"if (!{header.valid})"):
        low.block.add(f"memset(&{header.struct}, 0, sizeof {header.struct});")
        low.block.add(f"{header.valid} = 1;", f"D->size += {header.type.width // 8};")
    _protect(low, arguments[0], header)


def _remove_header(low: Lowering, arguments: Arguments) -> None:
    header = low.header(arguments[0])
    with low.block.braces(f"if ({header.valid})"):
        low.block.add(f"{header.valid} = 0;", f"D->size -= {header.type.width // 8};")


def _protect(low: Lowering, expression: Expression, header: HeaderRef) -> None:
    """The element that stands for an index out of range stays invalid."""
    if not isinstance(expression, HeaderOf):
        stack = getattr(expression, "stack", "")
        low.block.add(f"{low.layout.element(stack, str(len(low.layout.stack(stack).members))).valid} = 0;")


def _assign_header(low: Lowering, arguments: Arguments) -> None:
    target, source = (low.header(argument) for argument in arguments)
    with low.block.braces(f"if ({source.valid})"):
        low.block.add(f"{target.struct} = {source.struct};")
    if not target.always:
        low.block.add(f"{target.valid} = {source.valid};")
        _protect(low, arguments[0], target)


def _assign_stack(low: Lowering, arguments: Arguments) -> None:
    target, source = (low.stack_name(argument) for argument in arguments)
    depth = len(low.layout.stack(target).members)
    low.block.add(
        f"memcpy(D->{identifier(target)}, D->{identifier(source)}, sizeof D->{identifier(target)});",
        f"memcpy(&{low.layout.element(target, '0').valid}, &{low.layout.element(source, '0').valid}, {depth});",
        f"{low.layout.next_index(target)} = {low.layout.next_index(source)};",
    )


def _push(low: Lowering, arguments: Arguments) -> None:
    name, by = low.stack_name(arguments[0]), low.exact_amount(arguments[1])
    depth, following = len(low.layout.stack(name).members), low.layout.next_index(name)
    n = low.block.name("n")
    low.block.add(f"const uint64_t {n} = {by} < {depth} ? {by} : {depth};")
    _move(low, name, n, "0", f"{depth} - {n}")
    low.block.add(
        f"memset(&{low.layout.element(name, '0').valid}, 0, {n});",
        f"{following} = {following} + {n} < {depth} ? (uint32_t)({following} + {n}) : {depth};",
    )


def _pop(low: Lowering, arguments: Arguments) -> None:
    name, by = low.stack_name(arguments[0]), low.exact_amount(arguments[1])
    depth, following = len(low.layout.stack(name).members), low.layout.next_index(name)
    n = low.block.name("n")
    low.block.add(f"const uint64_t {n} = {by} < {depth} ? {by} : {depth};")
    _move(low, name, "0", n, f"{depth} - {n}")
    low.block.add(
        f"memset(&{low.layout.element(name, f'{depth} - {n}').valid}, 0, {n});",
        f"{following} = {following} > {n} ? (uint32_t)({following} - {n}) : 0;",
    )


def _move(low: Lowering, stack: str, to: str, source: str, count: str) -> None:
    base, valid = f"D->{identifier(stack)}", low.layout.element(stack, "0").valid
    low.block.add(
        f"memmove({base} + {to}, {base} + {source}, sizeof *{base} * ({count}));",
        f"memmove(&{valid} + {to}, &{valid} + {source}, {count});",
    )


def _hash(low: Lowering, arguments: Arguments) -> None:
    """target = base + hash % size, as BMv2: a size of 0 counts as 1."""
    target, base, calculation, size = arguments
    found = low.field(target)
    if found is None or not isinstance(calculation, Object):
        raise low.refuse("this form of hash()")
    value = emit_hash(low, low.layout.program.calculations[calculation.name])
    span = low.block.name("span")
    low.block.add(f"const uint64_t {span} = {low.exact_amount(size)};")
    text = f"({value} % ({span} ? {span} : 1) + {low.narrow(base)})"
    low.set(target, text)


def _random(low: Lowering, arguments: Arguments) -> None:
    """Uniform in low..high; the target stays when low > high."""
    target, least, most = arguments
    a, b = low.block.name("low"), low.block.name("high")
    low.block.add(f"const uint64_t {a} = {low.exact_amount(least)}, {b} = {low.exact_amount(most)};")
    with low.block.braces(f"if ({a} <= {b})"):
        drawn = "services(D->core)->random(D->core)"
        low.set(target, f"({b} - {a} + 1 ? {a} + {drawn} % ({b} - {a} + 1) : {drawn})")


def _exit(low: Lowering, _: Arguments) -> None:
    low.block.add("D->exit = 1;", "return;")


def _assert(low: Lowering, arguments: Arguments) -> None:
    """A packet for which the condition fails is dropped and counted."""
    with low.block.braces(f"if (!{_condition(low, arguments[0])})"):
        low.block.add("D->exit = 2;", "return;")


def _condition(low: Lowering, expression: Expression) -> str:
    return low.truth(expression) if low.is_truth(expression) else f"({low.exact_amount(expression)} != 0)"


def _truncate(low: Lowering, arguments: Arguments) -> None:
    """The least of several lengths counts."""
    name = low.block.name("bytes")
    low.block.add(f"const uint32_t {name} = (uint32_t){low.narrow(arguments[0], 32)};")
    low.block.add(f"if ({name} < D->truncate) D->truncate = {name};")


def _clone(low: Lowering, arguments: Arguments) -> None:
    """At the end of the pipeline; the last one counts."""
    session, fields = arguments
    low.block.add(f"D->clone = (uint32_t)({low.narrow(session, 16)}) & SESSION_MAX | SESSION_SET;")
    low.block.add(f"D->clone_list = {_list(low, fields)};")


def _resubmit(low: Lowering, arguments: Arguments) -> None:
    low.block.add(f"D->resubmit = {_list(low, arguments[0])};")


def _recirculate(low: Lowering, arguments: Arguments) -> None:
    low.block.add(f"D->recirculate = {_list(low, arguments[0])};")


def _list(low: Lowering, expression: Expression) -> int:
    """The number of a field list."""
    if isinstance(expression, Constant) and expression.value in low.layout.program.field_lists:
        return expression.value
    raise low.refuse(f"{expression} as a field list")


def _nothing(low: Lowering, _: Arguments) -> None:
    low.block.add(";")


PRIMITIVES: dict[str, Rule] = {
    "assign": Rule(_assign, (0,)),
    "set": Rule(_assign, (0,)),
    "mark_to_drop": Rule(_mark_to_drop),
    "register_read": Rule(_register_read, (0,)),
    "register_write": Rule(_register_write),
    "count": Rule(_count),
    "execute_meter": Rule(_execute_meter, (2,), certain=False),
    "generate_digest": Rule(_digest),
    "add_header": Rule(_add_header, (0,)),
    "remove_header": Rule(_remove_header, (0,)),
    "assign_header": Rule(_assign_header, (0,)),
    "assign_header_stack": Rule(_assign_stack, (0,)),
    "push": Rule(_push, (0,)),
    "pop": Rule(_pop, (0,)),
    "modify_field_with_hash_based_offset": Rule(_hash, (0,)),
    "modify_field_rng_uniform": Rule(_random, (0,), certain=False),
    "exit": Rule(_exit, leaves=True),
    "assert": Rule(_assert, leaves=True),
    "assume": Rule(_assert, leaves=True),
    "truncate": Rule(_truncate),
    "clone_ingress_pkt_to_egress": Rule(_clone),
    "clone_egress_pkt_to_egress": Rule(_clone),
    "resubmit": Rule(_resubmit),
    "recirculate": Rule(_recirculate),
    "no_op": Rule(_nothing),
}

JUMPS = ("_jump", "_jump_if_zero")


def rule_for(op: str, low: Lowering) -> Rule:
    """The rule of a primitive.  Raises ProgramError."""
    if op not in PRIMITIVES:
        raise ProgramError(f"{low.place}: primitive {op} is not executed")
    return PRIMITIVES[op]
