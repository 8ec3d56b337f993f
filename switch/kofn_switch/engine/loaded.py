"""A compiled program with its state: tables, counters, registers.

Only one thread at a time may call the methods (the engine serialises control operations). The packet thread may run
meanwhile.
"""

import ctypes
import struct
from collections.abc import Iterator

from kofn_switch import structs
from kofn_switch.compiler.build import Built
from kofn_switch.compiler.codegen.layout import c_type, limbs, mask_of
from kofn_switch.compiler.codegen.messages import message_of, numbered_messages
from kofn_switch.compiler.ir.program import Array, Program
from kofn_switch.errors import InvalidEntry, SwitchError
from kofn_switch.native import load_program, runtime
from kofn_switch.state.entries import Count, Digest, Entry, Key, LogReport
from kofn_switch.state.meters import Meters
from kofn_switch.state.named import named
from kofn_switch.state.rows import Rows
from kofn_switch.state.value_sets import ValueSets

PART_BYTES = 1 << 18
"""The most bytes of an array that are copied at a time. Packets wait for the copy, tens of microseconds."""

WORDS = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""The format character of struct, by the cell's size in bytes."""


class Loaded:
    """One instance of one program, bound to the runtime's `core`."""

    def __init__(self, built: Built, core: int) -> None:
        """Allocate the state and install the program's entries. Raise SwitchError."""
        self.program: Program = built.program
        self.built = built
        descriptor = load_program(built.library)
        self._native = runtime()
        self._core = core
        self.instance: int = self._native.instance_new(descriptor)
        if not self.instance:
            raise SwitchError("not enough memory for the program's tables and registers")
        self._counters = {array.name: (number, array) for number, array in enumerate(self.program.counters)}
        self._registers = {array.name: (number, array) for number, array in enumerate(self.program.registers)}
        self._messages = [message_of(statement) for statement in numbered_messages(self.program)]
        self.value_sets = ValueSets(self.program, self._native, core, self.instance)
        try:
            self.rows = Rows(self.program, core, self.instance)
        except SwitchError:
            self.free()
            raise
        self.meters = Meters(self.program, self.rows, core, self.instance)

    def free(self) -> None:
        """Free the memory; the packet thread must have stopped using it."""
        self._native.instance_free(self.instance)

    def insert(self, entry: Entry) -> None:
        self.rows.insert(entry)
        self.meters.begin(entry)

    def delete(self, table: str, key: Key, priority: int) -> None:
        self.meters.forget(table, self.rows.delete(table, key, priority))

    # Direct counters

    def count_at(self, table: str, key: Key | None, priority: int) -> int:
        """Return the address of an entry's direct counter, or of the default entry's counter if `key` is None."""
        if not self.rows.table(table).state.table.counted:
            counted = [item.name for item in self.program.tables if item.counted]
            raise InvalidEntry(f"table {table} has no direct counter; those with one: {', '.join(counted) or 'none'}")
        if key is None:
            return int(self._native.miss_count(self.instance, self.rows.number(table)))
        return int(self._native.table_count(self.instance, *self.rows.place_of(table, key, priority)))

    # Counters, registers, digests, messages

    def counter_at(self, name: str, index: int) -> int:
        """Return the address of a cell of an indirect counter."""
        number, array = named(self._counters, "counter", name)
        _check_index(array, "counter", index)
        return int(self._native.counter_cell(self.instance, number, index))

    def read_count(self, address: int) -> Count:
        """Return the content of the cell at `address`."""
        cell = structs.Count()
        self._native.core_read(self._core, ctypes.addressof(cell), address, ctypes.sizeof(cell))
        return Count(packets=cell.packets, bytes=cell.bytes)

    def write_count(self, address: int, count: Count) -> None:
        """Set the cell at `address`."""
        cell = structs.Count(packets=count.packets, bytes=count.bytes)
        self._native.core_write(self._core, address, ctypes.addressof(cell), ctypes.sizeof(cell))

    def read_register(self, name: str, index: int) -> int:
        number, array = self._register(name, index)
        size = _cell_bytes(array)
        data = ctypes.create_string_buffer(size)
        address = self._native.register_cell(self.instance, number, index)
        self._native.core_read(self._core, ctypes.addressof(data), address, size)
        return int.from_bytes(data.raw, "little")

    def write_register(self, name: str, index: int, value: int) -> None:
        number, array = self._register(name, index)
        if not 0 <= value <= mask_of(array.width):
            raise InvalidEntry(f"register {name} has cells of bit<{array.width}>; {value:#x} does not fit")
        size = _cell_bytes(array)
        data = ctypes.create_string_buffer(value.to_bytes(size, "little"), size)
        address = self._native.register_cell(self.instance, number, index)
        self._native.core_write(self._core, address, ctypes.addressof(data), size)

    def registers(self, name: str) -> list[int]:
        """Return all cells of a register array."""
        number, array = self._register(name, 0)
        size, data = _cell_bytes(array), bytearray()
        for address, length in _parts(self._native.register_cell(self.instance, number, 0), array.size, size):
            part = ctypes.create_string_buffer(length)
            self._native.core_read(self._core, ctypes.addressof(part), address, length)
            data += part
        if size in WORDS:
            return [*struct.unpack(f"<{array.size}{WORDS[size]}", data)]
        return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]

    def reset_registers(self, name: str) -> None:
        """Set all cells of a register array to 0."""
        number, array = self._register(name, 0)
        self._clear(self._native.register_cell(self.instance, number, 0), array.size, _cell_bytes(array))

    def reset_counters(self, name: str) -> None:
        """Set all cells of an indirect counter to 0."""
        _, array = named(self._counters, "counter", name)
        self._clear(self.counter_at(name, 0), array.size, ctypes.sizeof(structs.Count))

    def _clear(self, start: int, cells: int, size: int) -> None:
        zeros = ctypes.create_string_buffer(PART_BYTES)
        for address, length in _parts(start, cells, size):
            self._native.core_write(self._core, address, ctypes.addressof(zeros), length)

    def _register(self, name: str, index: int) -> tuple[int, Array]:
        number, array = named(self._registers, "register", name)
        _check_index(array, "register", index)
        return number, array

    def digest(self, record: bytes) -> Digest:
        """Return the digest in a ring's record, which has the list's number (32 bits) and then the fields as limbs."""
        learn = self.program.digests[int.from_bytes(record[:4], "little")]
        fields, at = [], 4
        for width in learn.widths:
            size = 8 * limbs(width)
            fields.append(int.from_bytes(record[at : at + size], "little"))
            at += size
        return Digest(name=learn.name, fields=tuple(fields))

    def report(self, record: bytes) -> LogReport:
        """Return the report in a ring's record, which has the message's number (32 bits) and then the values as
        emit_log writes them."""
        message = self._messages[int.from_bytes(record[:4], "little")]
        values, at = [], 4
        while at < len(record):
            size = int.from_bytes(record[at : at + 8], "little")
            end = at + 8 + size // 2 * 8
            values.append(int.from_bytes(record[at + 8 : end], "little", signed=bool(size % 2)))
            at = end
        return LogReport(text=message.fill(values), failed=message.failed)


def _parts(start: int, cells: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield address and length of parts of an array at `start`, each of whole cells of `size` bytes."""
    most = PART_BYTES // size
    for first in range(0, cells, most):
        yield start + first * size, size * min(most, cells - first)


def _cell_bytes(array: Array) -> int:
    return int(c_type(array.width)[4:-2]) // 8 if array.width <= 64 else 8 * limbs(array.width)


def _check_index(array: Array, kind: str, index: int) -> None:
    if not 0 <= index < array.size:
        raise InvalidEntry(f"{kind} {array.name} has cells 0..{array.size - 1}, not {index}")
