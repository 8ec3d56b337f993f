"""The statements of actions and parser states: a table of rules, primitive -> C.

A rule holds the function that writes the statement, and the positions of the arguments that it sets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kofn_switch.compiler.codegen import headers
from kofn_switch.compiler.codegen.copies import emit_clone, emit_recirculate, emit_resubmit
from kofn_switch.compiler.codegen.hashing import emit_hash
from kofn_switch.compiler.codegen.layout import c_type, limbs
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.codegen.reports import emit_assertion, emit_log
from kofn_switch.compiler.ir.expressions import Expression, Object
from kofn_switch.compiler.ir.program import Array, Meter
from kofn_switch.errors import ProgramError

Arguments = tuple[Expression, ...]
Emit = Callable[[Lowering, Arguments], None]
A = TypeVar("A", Array, Meter)


@dataclass(frozen=True, slots=True)
class Rule:
    """How to execute a primitive; `writes` are the positions of the arguments that it sets."""

    emit: Emit
    writes: tuple[int, ...] = ()
    leaves: bool = False  # may end the control (exit)
    certain: bool = True  # sets these arguments in every case


def _assign(low: Lowering, arguments: Arguments) -> None:
    target = low.ranges.field(arguments[0])
    if target is not None and target.variable:
        _assign_variable(low, arguments)
    else:
        low.assign(arguments[0], arguments[1])


def _assign_variable(low: Lowering, arguments: Arguments) -> None:
    """Assign one variable field to another: the value and its number of bits."""
    target, source = (low.field(argument) for argument in arguments)
    if target is None or source is None or source[1].variable is False:
        raise low.refuse("an assignment to a variable field from another operand")
    low.assign(arguments[0], arguments[1])
    low.block.add(f"{target[0].bits} = {source[0].bits};")


def _mark_to_drop(low: Lowering, arguments: Arguments) -> None:
    """Set egress_spec to the port that drops, and mcast_grp to 0 if the header has it."""
    for target, value in zip(arguments, (low.layout.target.drop_port, 0), strict=False):
        low.set(target, str(value))


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
    """Read a cell; an index out of range reads 0."""
    target, array, index = arguments
    number, register = _array(low, array, low.layout.program.registers)
    at, cells = _index(low, index), f"D->in->registers[{number}]"
    if register.width <= 64:
        cell = f"((const {c_type(register.width)} *){cells})[{at}]"
        low.set(target, f"({at} < {register.size} ? (uint64_t){cell} : 0)")
    else:
        cell = f"(const uint64_t *){cells} + {at} * {limbs(register.width)}"
        low.set_wide(target, f"({at} < {register.size} ? {cell} : wide_zero)", register.width)


def _register_write(low: Lowering, arguments: Arguments) -> None:
    """Write a cell; an index out of range writes nothing."""
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
    """Run a meter; an index out of range changes nothing."""
    meters = low.layout.program.meters
    number, meter = _array(low, arguments[0], meters)
    at = _index(low, arguments[1])
    units = "1" if meter.unit == "packets" else "D->length"
    with low.block.braces(f"if ({at} < {meter.size})"):
        now = "services(D->core)->now_us(D->core)"
        low.set(arguments[2], f"(uint64_t)meter_run(&D->in->meters[{number}][{at}], {now}, {units})")


def _digest(low: Lowering, arguments: Arguments) -> None:
    """Note a digest, which is sent after ingress with the fields' values at that time."""
    low.block.add(f"D->learn = (uint32_t){low.narrow(arguments[1])};")


def _hash(low: Lowering, arguments: Arguments) -> None:
    """Set target = base + hash % size, as BMv2 does: a size of 0 counts as 1."""
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
    """Draw uniformly from low..high; leave the target as it is when low > high."""
    target, least, most = arguments
    a, b = low.block.name("low"), low.block.name("high")
    low.block.add(f"const uint64_t {a} = {low.exact_amount(least)}, {b} = {low.exact_amount(most)};")
    with low.block.braces(f"if ({a} <= {b})"):
        drawn = "services(D->core)->random(D->core)"
        low.set(target, f"({b} - {a} + 1 ? {a} + {drawn} % ({b} - {a} + 1) : {drawn})")


def _exit(low: Lowering, _: Arguments) -> None:
    low.block.add("D->exit = 1;", "return;")


def _assert(low: Lowering, arguments: Arguments) -> None:
    emit_assertion(low, "assert", arguments)


def _assume(low: Lowering, arguments: Arguments) -> None:
    emit_assertion(low, "assume", arguments)


def _truncate(low: Lowering, arguments: Arguments) -> None:
    """Truncate the packet to the least of all given lengths."""
    name = low.block.name("bytes")
    low.block.add(f"const uint32_t {name} = (uint32_t){low.narrow(arguments[0], 32)};")
    low.block.add(f"if ({name} < D->truncate) D->truncate = {name};")


def _nothing(low: Lowering, _: Arguments) -> None:
    low.block.add(";")


PRIMITIVES: dict[str, Rule] = {
    "assign": Rule(_assign, (0,)),
    "set": Rule(_assign, (0,)),
    "mark_to_drop": Rule(_mark_to_drop, (0, 1)),
    "register_read": Rule(_register_read, (0,)),
    "register_write": Rule(_register_write),
    "count": Rule(_count),
    "execute_meter": Rule(_execute_meter, (2,), certain=False),
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
    "modify_field_rng_uniform": Rule(_random, (0,), certain=False),
    "exit": Rule(_exit, leaves=True),
    "assert": Rule(_assert, leaves=True),
    "assume": Rule(_assume, leaves=True),
    "log_msg": Rule(emit_log),
    "truncate": Rule(_truncate),
    "clone_ingress_pkt_to_egress": Rule(emit_clone),
    "clone_egress_pkt_to_egress": Rule(emit_clone),
    "resubmit": Rule(emit_resubmit),
    "recirculate": Rule(emit_recirculate),
    "no_op": Rule(_nothing),
}

JUMPS = ("_jump", "_jump_if_zero")


def rule_for(op: str, low: Lowering) -> Rule:
    """Return the rule of a primitive. Raise ProgramError."""
    if op not in PRIMITIVES:
        raise ProgramError(f"{low.place}: primitive {op} is not executed")
    return PRIMITIVES[op]
