"""A program that is compiled and has its state: tables, counters, registers.

Not thread-safe against itself (the engine serialises control operations); safe against the packet thread.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import TypeVar

from switch.compiler.codegen import generate
from switch.compiler.compile import compile_program
from switch.compiler.layout import c_type, limbs, mask_of
from switch.compiler.matching import numbered, stored_match
from switch.compiler.program import Array, Program, Table
from switch.compiler.reader import read_program
from switch.entries import Count, Digest, Entry, Key
from switch.errors import InvalidEntry, SwitchError, UnknownObject
from switch.native import CCount, limbs_array, load_program, runtime
from switch.tables import TableState, const_key
from switch.value_sets import ValueSets

T = TypeVar("T")


class Loaded:
    """One instance of one program, bound to the runtime's `core`."""

    def __init__(self, document: bytes, core: int) -> None:
        """Read, generate, compile, allocate, install const entries.  Raises ProgramError, CompilerMissing."""
        self.program: Program = read_program(document)
        descriptor = load_program(compile_program(generate(self.program)))
        self._native = runtime()
        self._core = core
        self.instance: int = self._native.instance_new(descriptor)
        if not self.instance:
            raise SwitchError("not enough memory for the program's tables and registers")
        numbers = numbered(self.program)
        self._numbers: Mapping[str, int] = numbers
        self._tables = {table.name: TableState(table) for table in self.program.tables if table.name in numbers}
        self._counters = {array.name: (number, array) for number, array in enumerate(self.program.counters)}
        self._registers = {array.name: (number, array) for number, array in enumerate(self.program.registers)}
        self.value_sets = ValueSets(self.program, self._native, core, self.instance)
        try:
            self._install_all()
        except SwitchError:
            self.free()
            raise

    def free(self) -> None:
        """Give the memory back; the packet thread must not use it any more."""
        self._native.instance_free(self.instance)

    # Tables

    def table(self, name: str) -> TableState:
        """The table of that name.  Raises UnknownObject."""
        return _named(self._tables, "table", name)

    def _install_all(self) -> None:
        for state in self._tables.values():
            self._write_default(state)
            self._install(state.table)

    def _install(self, table: Table) -> None:
        """The program's own entries; BMv2's priorities turned round, for here the higher wins."""
        entries = table.entries or ()
        top = max((entry.priority for entry in entries), default=0) + 1
        for own in entries:
            action = self.program.actions[own.action]
            priority = top - own.priority if table.prioritised else 0
            entry = Entry(
                table=table.name,
                key=const_key(table, own.key),
                priority=priority,
                action=action.name,
                parameters=own.parameters,
            )
            self._insert(self._tables[table.name], entry)

    def insert(self, entry: Entry) -> None:
        """See Engine.insert."""
        state = self.table(entry.table)
        _refuse_const(state.table)
        self._insert(state, entry)

    def _insert(self, state: TableState, entry: Entry) -> None:
        key, pairs = state.key(entry.key, entry.priority)
        action = state.action(entry.action, entry.parameters)
        placed, rank = state.place(entry, key)
        self._native.table_insert(
            self._core,
            self.instance,
            self._numbers[entry.table],
            placed.number,
            rank,
            limbs_array(stored_match(state.table, pairs)),
            action.id,
            limbs_array(state.parameter_words(action, entry.parameters)),
        )

    def modify(self, entry: Entry) -> None:
        """See Engine.modify."""
        state = self.table(entry.table)
        _refuse_const(state.table)
        key, _ = state.key(entry.key, entry.priority)
        action = state.action(entry.action, entry.parameters)
        placed = state.find(key, entry.priority)
        state.replace(placed, entry, key)
        words = limbs_array(state.parameter_words(action, entry.parameters))
        number = self._numbers[entry.table]
        self._native.table_modify(self._core, self.instance, number, placed.number, action.id, words)

    def delete(self, table: str, key: Key, priority: int) -> None:
        """See Engine.delete."""
        state = self.table(table)
        _refuse_const(state.table)
        normal, _ = state.key(key, priority)
        placed = state.find(normal, priority)
        rank = state.remove(placed, normal)
        self._native.table_delete(self._core, self.instance, self._numbers[table], placed.number, rank)

    def entries(self, table: str) -> list[Entry]:
        """See Engine.entries."""
        return [placed.entry for placed in self.table(table).placed.values()]

    def set_default(self, table: str, action: str | None, parameters: Sequence[int]) -> None:
        """See Engine.set_default; action None is the program's own default."""
        state = self.table(table)
        if action is None:
            state.default = state.initial_default
        elif state.table.default_const:
            raise InvalidEntry(f"the default action of table {table} is const: {state.default[0].name}")
        else:
            state.default = state.action(action, parameters), tuple(parameters)
        self._write_default(state)

    def _write_default(self, state: TableState) -> None:
        action, parameters = state.default
        words = limbs_array(state.parameter_words(action, parameters))
        number = self._numbers[state.table.name]
        self._native.table_set_miss(self._core, self.instance, number, action.id, words)

    def count_at(self, table: str, key: Key | None, priority: int) -> int:
        """Address of an entry's direct counter, of the default entry's for key None."""
        state, number = self.table(table), self._numbers.get(table, 0)
        if not state.table.counted:
            counted = [item.table.name for item in self._tables.values() if item.table.counted]
            raise InvalidEntry(f"table {table} has no direct counter; those with one: {', '.join(counted) or 'none'}")
        if key is None:
            return int(self._native.miss_count(self.instance, number))
        normal, _ = state.key(key, priority)
        return int(self._native.table_count(self.instance, number, state.find(normal, priority).number))

    # Counters, registers, digests

    def counter_at(self, name: str, index: int) -> int:
        """Address of a cell of an indirect counter."""
        number, array = _named(self._counters, "counter", name)
        _check_index(array, "counter", index)
        return int(self._native.counter_cell(self.instance, number, index))

    def read_count(self, address: int) -> Count:
        """What the cell at `address` holds."""
        cell = CCount()
        self._native.core_read(self._core, ctypes.addressof(cell), address, ctypes.sizeof(cell))
        return Count(packets=cell.packets, bytes=cell.bytes)

    def write_count(self, address: int, count: Count) -> None:
        """Set the cell at `address`."""
        cell = CCount(packets=count.packets, bytes=count.bytes)
        self._native.core_write(self._core, address, ctypes.addressof(cell), ctypes.sizeof(cell))

    def read_register(self, name: str, index: int) -> int:
        """See Engine.read_register."""
        number, array = self._register(name, index)
        size = _cell_bytes(array)
        data = ctypes.create_string_buffer(size)
        address = self._native.register_cell(self.instance, number, index)
        self._native.core_read(self._core, ctypes.addressof(data), address, size)
        return int.from_bytes(data.raw, "little")

    def write_register(self, name: str, index: int, value: int) -> None:
        """See Engine.write_register."""
        number, array = self._register(name, index)
        if not 0 <= value <= mask_of(array.width):
            raise InvalidEntry(f"register {name} has cells of bit<{array.width}>; {value:#x} does not fit")
        size = _cell_bytes(array)
        data = ctypes.create_string_buffer(value.to_bytes(size, "little"), size)
        address = self._native.register_cell(self.instance, number, index)
        self._native.core_write(self._core, address, ctypes.addressof(data), size)

    def _register(self, name: str, index: int) -> tuple[int, Array]:
        number, array = _named(self._registers, "register", name)
        _check_index(array, "register", index)
        return number, array

    def digest(self, record: bytes) -> Digest:
        """A record of the digest ring: the list's number (32 bits), then the fields as limbs."""
        learn = self.program.digests[int.from_bytes(record[:4], "little")]
        fields, at = [], 4
        for width in learn.widths:
            size = 8 * limbs(width)
            fields.append(int.from_bytes(record[at : at + size], "little"))
            at += size
        return Digest(name=learn.name, fields=tuple(fields))


def _cell_bytes(array: Array) -> int:
    return int(c_type(array.width)[4:-2]) // 8 if array.width <= 64 else 8 * limbs(array.width)


def _check_index(array: Array, kind: str, index: int) -> None:
    if not 0 <= index < array.size:
        raise InvalidEntry(f"{kind} {array.name} has cells 0..{array.size - 1}, not {index}")


def _named(objects: Mapping[str, T], kind: str, name: str) -> T:
    if name not in objects:
        raise UnknownObject(f"the program has no {kind} {name}; it has {', '.join(objects) or 'none'}")
    return objects[name]


def _refuse_const(table: Table) -> None:
    if table.entries is not None:
        raise InvalidEntry(f"table {table.name} has const entries: they cannot be changed, none can be added")
