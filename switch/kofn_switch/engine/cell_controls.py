"""The engine's meters, counters, registers and value sets."""

from collections.abc import Sequence

from kofn_switch.engine.controls import Controls
from kofn_switch.state.entries import Count, Key, MeterConfig


class CellControls(Controls):
    """The methods that change and read meters, counters, registers and value sets; see Engine."""

    # Meters

    def meter(self, table: str, key: Key, priority: int = 0) -> MeterConfig | None:
        """Return the configuration of an entry's direct meter; None: all green. Raise InvalidEntry, EntryNotFound."""
        with self._lock:
            return self._now.meters.read_entry(table, key, priority)

    def set_meter(self, table: str, key: Key, priority: int, config: MeterConfig | None) -> None:
        """Configure an entry's direct meter and fill its bursts. Raise the errors of `meter`."""
        with self._lock:
            self._now.meters.write_entry(table, key, priority, config)

    def set_meters(self, table: str, config: MeterConfig) -> None:
        """Configure the direct meters of a table's present and later entries. Raise the errors of `meter`."""
        with self._lock:
            self._now.meters.write_all(table, config)

    def read_meter(self, name: str, index: int) -> MeterConfig | None:
        """Return the configuration of one cell of a meter array; None: all is green. Raise InvalidEntry (index)."""
        with self._lock:
            return self._now.meters.read(name, index)

    def write_meter(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell of a meter array and fill its bursts."""
        with self._lock:
            self._now.meters.write(name, index, config)

    # Counters and registers

    def count(self, table: str, key: Key, priority: int = 0) -> Count:
        """Return an entry's direct counter. Raise EntryNotFound, or InvalidEntry if the table has no direct counter."""
        with self._lock:
            return self._now.read_count(self._now.count_at(table, key, priority))

    def set_count(self, table: str, key: Key, priority: int, count: Count) -> None:
        """Set the direct counter of an entry. Raise the errors of `count`."""
        with self._lock:
            self._now.write_count(self._now.count_at(table, key, priority), count)

    def default_count(self, table: str) -> Count:
        """Return the direct counter of the default entry, which counts misses."""
        with self._lock:
            return self._now.read_count(self._now.count_at(table, None, 0))

    def set_default_count(self, table: str, count: Count) -> None:
        """Set the direct counter of the default entry."""
        with self._lock:
            self._now.write_count(self._now.count_at(table, None, 0), count)

    def read_counter(self, name: str, index: int) -> Count:
        """Return one cell of an indirect counter. Raise InvalidEntry (index)."""
        with self._lock:
            return self._now.read_count(self._now.counter_at(name, index))

    def write_counter(self, name: str, index: int, count: Count) -> None:
        """Set one cell of an indirect counter."""
        with self._lock:
            self._now.write_count(self._now.counter_at(name, index), count)

    def reset_counters(self, name: str) -> None:
        """Set all cells of an indirect counter to 0."""
        with self._lock:
            self._now.reset_counters(name)

    def read_register(self, name: str, index: int) -> int:
        """Return one cell of a register array, unsigned. Raise InvalidEntry (index)."""
        with self._lock:
            return self._now.read_register(name, index)

    def write_register(self, name: str, index: int, value: int) -> None:
        """Set one cell of a register array."""
        with self._lock:
            self._now.write_register(name, index, value)

    def registers(self, name: str) -> list[int]:
        """Return all cells of a register array, unsigned."""
        with self._lock:
            return self._now.registers(name)

    def reset_registers(self, name: str) -> None:
        """Set all cells of a register array to 0."""
        with self._lock:
            self._now.reset_registers(name)

    # Value sets

    def value_set(self, name: str) -> tuple[int, ...]:
        """Return the keys in a parser's value set. A key is the fields of the select, concatenated without gaps."""
        with self._lock:
            return self._now.value_sets.get(name)

    def set_value_set(self, name: str, keys: Sequence[int]) -> None:
        """Replace all keys of a value set at once. Raise UnknownObject, InvalidEntry, TableFull."""
        with self._lock:
            self._now.value_sets.replace(name, keys)
