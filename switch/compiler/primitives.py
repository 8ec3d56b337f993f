"""The statements of actions and parser states: a table of rules, primitive -> C.

A rule says how to emit the statement and which of its arguments it writes; `exact` effects on whole headers are listed
so that the generator knows what egress may change.
"""

from collections.abc import Callable
from dataclasses import dataclass

from switch.compiler import headers
from switch.compiler.hashing import emit_hash
from switch.compiler.layout import c_type, limbs, literal, mask_of
from switch.compiler.lowering import Lowering
from switch.compiler.program import DROP_PORT, Array, Expression, Object
from switch.errors import ProgramError

Arguments = tuple[Expression, ...]
Emit = Callable[[Lowering, Arguments], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """How to execute a primitive; `writes` are the positions of the arguments that it sets."""

    emit: Emit
    writes: tuple[int, ...] = ()
    leaves: bool = False  # may end the control (exit)


def _assign(low: Lowering, arguments: Arguments) -> None:
    target = low.ranges.field(arguments[0])
    if target is not None and target.variable:
        _assign_variable(low, arguments)
    else:
        low.assign(arguments[0], arguments[1])


def _assign_variable(low: Lowering, arguments: Arguments) -> None:
    """From one variable field to another: the value and how many bits it has."""
    target, source = (low.field(argument) for argument in arguments)
    if target is None or source is None or source[1].variable is False:
        raise low.refuse("an assignment of something else to a variable field")
    low.assign(arguments[0], arguments[1])
    low.block.add(f"{target[0].bits} = {source[0].bits};")


def _mark_to_drop(low: Lowering, arguments: Arguments) -> None:
    meta = low.header(arguments[0]).struct
    low.block.add(f"{meta}.egress_spec_ = {DROP_PORT};", f"{meta}.mcast_grp_ = 0;")


def _array(low: Lowering, expression: Expression, arrays: tuple[Array, ...]) -> tuple[int, Array]:
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


def _digest(low: Lowering, arguments: Arguments) -> None:
    """Sent after ingress, with the fields' values at that time."""
    low.block.add(f"D->learn = (uint32_t){low.narrow(arguments[1])};")


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
    _set(low, target, text)


def _set(low: Lowering, target: Expression, text: str) -> None:
    """target = a 64-bit C expression."""
    found = low.field(target)
    if found is None:
        raise low.refuse(f"{target} as a target")
    member, width = found[0].field(found[1]), found[1].width
    if width > 64:
        low.block.add(f"wide_copy({member}, wide_zero, {limbs(width)});", f"{member}[0] = {text};")
    else:
        low.block.add(f"{member} = {text} & {literal(mask_of(width))};")


def _random(low: Lowering, arguments: Arguments) -> None:
    """Uniform in low..high; the target stays when low > high."""
    target, least, most = arguments
    a, b = low.block.name("low"), low.block.name("high")
    low.block.add(f"const uint64_t {a} = {low.exact_amount(least)}, {b} = {low.exact_amount(most)};")
    with low.block.braces(f"if ({a} <= {b})"):
        drawn = "services(D->core)->random(D->core)"
        _set(low, target, f"({b} - {a} + 1 ? {a} + {drawn} % ({b} - {a} + 1) : {drawn})")


def _exit(low: Lowering, _: Arguments) -> None:
    low.block.add("D->exit = 1;", "return;")


def _assert(low: Lowering, arguments: Arguments) -> None:
    """A packet for which the condition fails is dropped and counted."""
    with low.block.braces(f"if (!{_condition(low, arguments[0])})"):
        low.block.add("D->exit = 2;", "return;")


def _condition(low: Lowering, expression: Expression) -> str:
    return low.truth(expression) if low.is_truth(expression) else f"({low.exact_amount(expression)} != 0)"


def _truncate(low: Lowering, arguments: Arguments) -> None:
    low.block.add(f"D->truncate = (uint32_t){low.narrow(arguments[0], 32)};")


def _nothing(low: Lowering, _: Arguments) -> None:
    low.block.add(";")


PRIMITIVES: dict[str, Rule] = {
    "assign": Rule(_assign, (0,)),
    "set": Rule(_assign, (0,)),
    "mark_to_drop": Rule(_mark_to_drop),
    "register_read": Rule(_register_read, (0,)),
    "register_write": Rule(_register_write),
    "count": Rule(_count),
    "generate_digest": Rule(_digest),
    "assign_VL": Rule(_assign, (0,)),
    "add_header": Rule(headers.add_header, (0,)),
    "remove_header": Rule(headers.remove_header, (0,)),
    "assign_header": Rule(headers.assign_header, (0,)),
    "assign_union": Rule(headers.assign_union, (0,)),
    "assign_header_stack": Rule(headers.assign_stack, (0,)),
    "assign_union_stack": Rule(headers.assign_stack, (0,)),
    "push": Rule(headers.push, (0,)),
    "pop": Rule(headers.pop, (0,)),
    "modify_field_with_hash_based_offset": Rule(_hash, (0,)),
    "modify_field_rng_uniform": Rule(_random, (0,)),
    "exit": Rule(_exit, leaves=True),
    "assert": Rule(_assert, leaves=True),
    "assume": Rule(_assert, leaves=True),
    "truncate": Rule(_truncate),
    "no_op": Rule(_nothing),
}

JUMPS = ("_jump", "_jump_if_zero")


def rule_for(op: str, low: Lowering) -> Rule:
    """The rule of a primitive.  Raises ProgramError."""
    if op not in PRIMITIVES:
        raise ProgramError(f"{low.place}: primitive {op} is not executed")
    return PRIMITIVES[op]
