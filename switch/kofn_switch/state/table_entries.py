"""The entries of one table: the native part holds them, and this module the properties that look-ups do not need."""

from collections.abc import Iterator
from ctypes import c_uint64
from dataclasses import dataclass
from errno import EEXIST

from kofn_switch.compiler.codegen.matching import numbers, stored_limbs
from kofn_switch.errors import EntryExists, EntryNotFound, TableFull
from kofn_switch.native import limbs_array, runtime
from kofn_switch.state.entries import Entry, Key
from kofn_switch.state.profiles import Held
from kofn_switch.state.tables import Stored, TableState


@dataclass(frozen=True, slots=True)
class Beside:
    """An entry's properties that the native part does not hold."""

    idle_timeout_ns: int = 0
    metadata: bytes = b""
    controller_metadata: int = 0
    typed: Key = ()
    held: Held | None = None  # reference to an action profile


NOTHING = Beside()


class TableEntries:
    """Entries by their places, the numbers of rows in the native table. A new entry gets the lowest free place."""

    def __init__(self, state: TableState, core: int, instance: int, number: int | None) -> None:
        """Take the table's `number` in the native part; None if the native part does not have the table, because the
        program only calls its default action."""
        self.state = state
        self.number = number
        self._native, self._core, self._instance = runtime(), core, instance
        self._beside: dict[int, Beside] = {}
        self._row = (c_uint64 * (1 + stored_limbs(state.table) + state.limbs))()

    def find(self, stored: Stored) -> int:
        """Return the entry's place. Raise EntryNotFound."""
        words = limbs_array(stored.mask), limbs_array(stored.match), stored.order
        place = -1 if self.number is None else self._native.table_find(self._instance, self.number, *words)
        if place < 0:
            raise EntryNotFound(f"table {self.state.table.name} has no entry {stored}")
        return int(place)

    def at(self, place: int) -> Entry:
        """Return the entry at a place.  Raises EntryNotFound."""
        known = self.number is not None and 0 <= place < self.state.capacity
        if not known or self._native.table_next(self._instance, self.number, place) != place:
            raise EntryNotFound(f"table {self.state.table.name} has no entry {place}")
        return self.entry(place)

    def insert(self, stored: Stored, entry: Entry, action: int, parameters: list[int], held: Held | None) -> int:
        """Add an entry and return its place. Raise EntryExists, TableFull."""
        words = limbs_array(stored.mask), limbs_array(stored.match), stored.order, action, limbs_array(parameters)
        place: int = self._native.table_insert(self._core, self._instance, self.number, *words)
        if place == -EEXIST:
            raise EntryExists(f"table {self.state.table.name} has an entry {stored} already")
        if place < 0:
            raise TableFull(f"table {self.state.table.name} is full: {self.state.capacity} entries")
        self._note(place, entry, held)
        return place

    def modify(self, place: int, entry: Entry, action: int, parameters: list[int], held: Held | None) -> None:
        words = limbs_array(parameters)
        self._native.table_modify(self._core, self._instance, self.number, place, action, words)
        self._note(place, entry, held)

    def delete(self, place: int, stored: Stored) -> None:
        self._native.table_delete(self._core, self._instance, self.number, place, limbs_array(stored.mask))
        self._beside.pop(place, None)

    def held(self, place: int) -> Held | None:
        """Return the entry's reference to an action profile."""
        return self._beside.get(place, NOTHING).held

    def _note(self, place: int, entry: Entry, held: Held | None) -> None:
        typed = () if entry.typed == entry.key else entry.typed
        beside = Beside(entry.idle_timeout_ns, entry.metadata, entry.controller_metadata, typed, held)
        if beside == NOTHING:
            self._beside.pop(place, None)
        else:
            self._beside[place] = beside

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries, in the order of their places."""
        place, used = 0, 0 if self.number is None else self._native.table_used(self._instance, self.number)
        for _ in range(used):
            place = self._native.table_next(self._instance, self.number, place)
            yield self.entry(place)
            place += 1

    def entry(self, place: int) -> Entry:
        """Return the entry with its key in the normal form."""
        self._native.table_read(self._instance, self.number, place, self._row)
        table, (number, *row) = self.state.table, self._row
        beside = self._beside.get(place, NOTHING)
        action = None if table.profile is not None else self.state.by_id[number]
        return Entry(
            table=table.name,
            key=self.state.key_of(row),
            priority=self.state.priority_of(row),
            action="" if action is None else action.name,
            parameters=() if action is None else tuple(numbers(action.parameters, row[stored_limbs(table) :])),
            via=None if beside.held is None else beside.held.via,
            idle_timeout_ns=beside.idle_timeout_ns,
            metadata=beside.metadata,
            controller_metadata=beside.controller_metadata,
            typed=beside.typed,
        )
