"""CounterEntry and RegisterEntry: read and set one cell, or all cells, of the engine's counters and registers."""

from collections.abc import Iterator
from typing import TypeVar

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime import p4data
from kofn_switch.p4runtime.cells import UpdateType, count, counter_data
from kofn_switch.p4runtime.index import Index
from kofn_switch.p4runtime.p4info import Array, P4Info
from kofn_switch.p4runtime.refusal import invalid, out_of_range, unimplemented

A = TypeVar("A", bound=Array)


class Arrays:
    """The program's counters and registers as P4Runtime has them."""

    def __init__(self, engine: Engine, p4info: P4Info) -> None:
        """Take the `p4info` of the program that `engine` runs."""
        self._engine = engine
        self._p4info = p4info

    def write_counter(self, kind: UpdateType, message: p4r.CounterEntry) -> None:
        """Carry out MODIFY of one cell, or of all cells if the index is unset. A message without data changes
        nothing."""
        counter = self._p4info.counters.get(message.counter_id)
        only_modify(kind, "counter", counter)
        if message.HasField("data"):
            value = count(message.data)
            for index in indices("counter", counter, message.index if message.HasField("index") else None):
                self._engine.write_counter(counter.name, index, value)

    def read_counter(self, query: p4r.CounterEntry) -> Iterator[p4r.CounterEntry]:
        """Yield one cell, all cells of a counter (no index), or all cells of all counters (id 0)."""
        wanted = query.index if query.HasField("index") else None
        for counter in selected(self._p4info.counters, query.counter_id):
            for index in indices("counter", counter, wanted):
                data = counter_data(self._engine.read_counter(counter.name, index))
                yield p4r.CounterEntry(counter_id=counter.id, index=p4r.Index(index=index), data=data)

    def write_register(self, kind: UpdateType, message: p4r.RegisterEntry) -> None:
        """Carry out MODIFY of one cell, or of all cells if the index is unset."""
        register = self._p4info.registers.get(message.register_id)
        only_modify(kind, "register", register)
        _single(register.type)
        (value,) = p4data.decode(register.type, message.data)
        for index in indices("register", register, message.index if message.HasField("index") else None):
            self._engine.write_register(register.name, index, value)

    def read_register(self, query: p4r.RegisterEntry) -> Iterator[p4r.RegisterEntry]:
        """Yield one cell, all cells of a register (no index), or all cells of all registers (id 0)."""
        wanted = query.index if query.HasField("index") else None
        for register in selected(self._p4info.registers, query.register_id):
            _single(register.type)
            for index in indices("register", register, wanted):
                data = p4data.encode(register.type, [self._engine.read_register(register.name, index)])
                yield p4r.RegisterEntry(register_id=register.id, index=p4r.Index(index=index), data=data)


def selected(arrays: Index[A], wanted_id: int) -> list[A]:
    """Return the array of that id, or all arrays for id 0."""
    return [arrays.get(wanted_id)] if wanted_id else list(arrays)


def only_modify(kind: UpdateType, what: str, array: Array) -> None:
    """Refuse INSERT and DELETE; `what` is the kind of array."""
    if kind != p4r.Update.MODIFY:
        raise invalid(f"{what} {array.name} can only be MODIFIED: its cells always exist")


def indices(what: str, array: Array, wanted: p4r.Index | None) -> range:
    """Return the index after a check, or all indices if `wanted` is None."""
    if wanted is None:
        return range(array.size)
    if wanted.index < 0:
        raise invalid(f"the index of {what} {array.name} must be 0 to {array.size - 1}, got {wanted.index}")
    if wanted.index >= array.size:
        raise out_of_range(f"the index of {what} {array.name} must be 0 to {array.size - 1}, got {wanted.index}")
    return range(wanted.index, wanted.index + 1)


def _single(of: p4data.DataType) -> None:
    if p4data.leaves(of) != 1:
        raise unimplemented(f"{of.name} holds structs; registers of single values are offered")
