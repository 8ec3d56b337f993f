"""The meters of a loaded program. Each configuration is kept as the client wrote it, and set in the native code.

Only one thread at a time may call the methods (the engine serialises control operations). The packet thread may run
meanwhile.
"""

import struct

from kofn_switch.compiler.ir.program import Meter, Program
from kofn_switch.errors import InvalidEntry
from kofn_switch.native import limbs_array, runtime
from kofn_switch.state.entries import Entry, Key, MeterConfig
from kofn_switch.state.named import named
from kofn_switch.state.rows import Rows

RATE_MAX = (1 << 63) - 1


class Meters:
    """Cells of meter arrays, by name and index, and direct meters, by table and entry. A meter without a configuration
    marks every packet green."""

    def __init__(self, program: Program, rows: Rows, core: int, instance: int) -> None:
        self._native = runtime()
        self._core = core
        self._instance = instance
        self._rows = rows
        self._arrays = {meter.name: (number, meter) for number, meter in enumerate(program.meters)}
        self._direct = [table.name for table in program.tables if table.meter is not None]
        self._cells: dict[tuple[str, int], MeterConfig] = {}
        self._entries: dict[tuple[str, int], MeterConfig] = {}
        self._new_entries: dict[str, MeterConfig] = {}  # by table

    def read(self, name: str, index: int) -> MeterConfig | None:
        self._array(name, index)
        return self._cells.get((name, index))

    def write(self, name: str, index: int, config: MeterConfig | None) -> None:
        number, _ = self._array(name, index)
        self._set(self._native.meter_cell(self._instance, number, index), config, f"meter {name}")
        _note(self._cells, (name, index), config)

    def read_entry(self, table: str, key: Key, priority: int) -> MeterConfig | None:
        _, number = self._place(table, key, priority)
        return self._entries.get((table, number))

    def write_entry(self, table: str, key: Key, priority: int, config: MeterConfig | None) -> None:
        place, number = self._place(table, key, priority)
        after_hit = 8 * self._rows.table(table).state.table.idle_timeouts
        address = self._native.table_extra(self._instance, place, number) + after_hit
        self._set(address, config, f"the meter of table {table}")
        _note(self._entries, (table, number), config)

    def write_all(self, table: str, config: MeterConfig) -> None:
        """Configure the meters of a table's entries, and of entries added later."""
        for entry in self._rows.entries(table, None):
            self.write_entry(table, entry.key, entry.priority, config)
        self._new_entries[table] = config

    def begin(self, entry: Entry) -> None:
        """Configure the meter of a new entry."""
        if (config := self._new_entries.get(entry.table)) is not None:
            self.write_entry(entry.table, entry.key, entry.priority, config)

    def forget(self, table: str, number: int) -> None:
        """Forget the meter of a removed entry."""
        self._entries.pop((table, number), None)

    def _set(self, address: int, config: MeterConfig | None, what: str) -> None:
        _check(config, what)
        words = None if config is None else limbs_array(_words(config))
        self._native.meter_set(self._core, address, words)

    def _array(self, name: str, index: int) -> tuple[int, Meter]:
        number, meter = named(self._arrays, "meter", name)
        if not 0 <= index < meter.size:
            raise InvalidEntry(f"meter {name} has cells 0..{meter.size - 1}, not {index}")
        return number, meter

    def _place(self, table: str, key: Key, priority: int) -> tuple[int, int]:
        place = self._rows.place_of(table, key, priority)
        if table not in self._direct:
            raise InvalidEntry(
                f"table {table} has no direct meter; tables that have one: {', '.join(self._direct) or 'none'}"
            )
        return place


def _words(config: MeterConfig) -> list[int]:
    """Return the words for native code: for each rate the bits of a double, and its burst."""
    rates = (config.committed_rate, config.peak_rate)
    committed, peak = (int.from_bytes(struct.pack("<d", rate), "little") for rate in rates)
    return [committed, config.committed_burst, peak, config.peak_burst]


def _check(config: MeterConfig | None, what: str) -> None:
    if config is None:
        return
    numbers = (config.committed_rate, config.committed_burst, config.peak_rate, config.peak_burst)
    if not all(0 <= number <= RATE_MAX for number in numbers):
        raise InvalidEntry(f"rates and bursts of {what} are 0..2**63 - 1, not {config}")
    if config.committed_rate > config.peak_rate:
        raise InvalidEntry(
            f"the committed rate of {what}, {config.committed_rate}, is above the peak rate, {config.peak_rate}"
        )


def _note(configs: dict[tuple[str, int], MeterConfig], which: tuple[str, int], config: MeterConfig | None) -> None:
    if config is None:
        configs.pop(which, None)
    else:
        configs[which] = config
