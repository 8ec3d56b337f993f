"""Statements on lasting state, hashes and random numbers."""

from collections.abc import Callable, Mapping

from tests.switch.reference.call import Call
from tests.switch.reference.hashes import calculate
from tests.switch.reference.packet import wrap


def _register_read(call: Call) -> None:
    """Read a cell; an index out of range reads 0."""
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
    """Set target = base + hash % size in 64 bits; a size of 0 counts as 1."""
    base, size = wrap(call.value(1), 64), wrap(call.value(3), 64)
    calculation = call.around.program.calculations[call.name(2)]
    value = calculate(calculation, call.scope, call.packet)
    call.scope.assign(call.arguments[0], wrap(value % (size or 1) + base, 64))


def _random(call: Call) -> None:
    """Draw a number between both bounds, inclusive; leave the target as it is when low > high."""
    low, high = wrap(call.value(1), 64), wrap(call.value(2), 64)
    if low <= high:
        call.scope.assign(call.arguments[0], call.around.random.randint(low, high))


STATE_STATEMENTS: Mapping[str, Callable[[Call], None]] = {
    "register_read": _register_read,
    "register_write": _register_write,
    "count": _count,
    "execute_meter": _execute_meter,
    "modify_field_with_hash_based_offset": _hash,
    "modify_field_rng_uniform": _random,
}
