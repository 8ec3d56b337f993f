"""Tables: every entry is compared, and the best match wins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kofn_switch.compiler.ir.expressions import FieldOf
from kofn_switch.compiler.ir.program import Action, KeyField, Table
from kofn_switch.errors import EntryExists, EntryNotFound, InvalidEntry
from kofn_switch.state.entries import Entry, Exact, Key, Lpm, Match, Optional, Range, Ternary, Via
from kofn_switch.state.places import Places
from kofn_switch.state.tables import TableState, const_key
from tests.switch.reference.call import CallContext, StateCell
from tests.switch.reference.expressions import Scope
from tests.switch.reference.meters import MeterCell
from tests.switch.reference.packet import VALID, wrap
from tests.switch.reference.profiles import Chosen

Run = tuple[Action, tuple[int, ...]]


@dataclass(slots=True)
class TableRow:
    """An entry with its place, meter and counter; the lowest `rank` wins, then the lowest place."""

    entry: Entry
    rank: int
    place: int
    meter: MeterCell
    cell: StateCell = field(default_factory=StateCell)


class ReferenceTable:
    """The entries of one table and its default. TableState checks the control plane's writes."""

    def __init__(self, around: CallContext, table: Table) -> None:
        """Install the program's own entries."""
        self.table = table
        self._around = around
        self._state = TableState(table)
        self._places = Places(f"table {table.name}", self._state.capacity)
        self.default = self._own_default()
        self.rows: dict[tuple[Key, int], TableRow] = {}
        self.misses = StateCell()
        own = table.entries or ()
        top = max((entry.priority for entry in own), default=0) + 1
        for entry in own:
            self.insert(
                Entry(
                    table=table.name,
                    key=const_key(table, entry.key),
                    priority=top - entry.priority if table.prioritised else 0,  # the reverse of BMv2's
                    action=around.program.actions[entry.action].name,
                    parameters=entry.parameters,
                )
            )

    def insert(self, entry: Entry) -> None:
        """Add an entry.  Raises InvalidEntry, EntryExists, TableFull."""
        key = self._state.stored(entry.key, entry.priority).key
        self._check_action(entry)
        if (key, entry.priority) in self.rows:
            raise EntryExists(f"table {self.table.name} has that entry already")
        unit = "packets" if self.table.meter is None else self.table.meter.unit
        meter = MeterCell(unit=unit, since_us=self._around.now_us())
        row = TableRow(entry=entry, rank=self._rank(entry), place=self._places.take(), meter=meter)
        self.rows[key, entry.priority] = row

    def _check_action(self, entry: Entry) -> None:
        if (entry.via is None) != (self.table.profile is None):
            raise InvalidEntry(f"table {self.table.name} has {'an' if self.table.profile else 'no'} action profile")
        if entry.via is None:
            self._state.action(entry.action, entry.parameters)

    def _rank(self, entry: Entry) -> int:
        """Return the rank: by priority, or by the prefix where there is none."""
        if self.table.prioritised:
            return -entry.priority
        return -sum(match.prefix_length for match in entry.key if isinstance(match, Lpm))

    def modify(self, entry: Entry) -> None:
        """Give an entry another action and keep its counter. Raise InvalidEntry, EntryNotFound."""
        row = self.row(entry.key, entry.priority)
        self._check_action(entry)
        row.entry = entry

    def delete(self, key: Key, priority: int) -> None:
        """Remove an entry.  Raises InvalidEntry, EntryNotFound."""
        self._places.free(self.row(key, priority).place)
        del self.rows[self._state.stored(key, priority).key, priority]

    def row(self, key: Key, priority: int) -> TableRow:
        """Return the entry with that key. Raises InvalidEntry, EntryNotFound."""
        normal = self._state.stored(key, priority).key
        if (normal, priority) not in self.rows:
            raise EntryNotFound(f"table {self.table.name} has no such entry")
        return self.rows[normal, priority]

    def set_default(self, action: str, parameters: Sequence[int]) -> None:
        """Set the default action. Raise InvalidEntry."""
        if self.table.default_const:
            raise InvalidEntry(f"the default action of table {self.table.name} is const")
        self.default = self._state.action(action, parameters), tuple(parameters)

    def reset_default(self) -> None:
        """Return to the program's default action."""
        self.default = self._own_default()

    def _own_default(self) -> Run | None:
        """Return the program's default action; None: a miss does nothing."""
        number = self.table.default_action
        return None if number is None else (self._around.program.actions[number], self.table.default_parameters)

    def look_up(self, scope: Scope) -> TableRow | None:
        """Return the best entry for a packet; of equally good ones that in the lowest place."""
        values = [key_value(item, scope) for item in self.table.key]
        hits = [row for row in self.rows.values() if self._hits(row.entry.key, values)]
        return min(hits, key=lambda row: (row.rank, row.place), default=None)

    def _hits(self, key: Key, values: Sequence[int]) -> bool:
        return all(matches(item, match, value) for item, match, value in zip(self.table.key, key, values, strict=True))

    def action(self, row: TableRow | None, choose: Callable[[Via], Chosen | None]) -> Run | None:
        """Return the action to run with its parameters, None for no action; `choose` is the table's action profile."""
        if row is None:
            return self.default
        chosen = row.entry if row.entry.via is None else choose(row.entry.via)
        return None if chosen is None else (self._state.actions[chosen.action], chosen.parameters)


def key_value(item: KeyField, scope: Scope) -> int:
    """Return a field of the key as an unsigned number; zero when its header is invalid."""
    target = item.target
    if isinstance(target, FieldOf) and target.field != VALID and not scope.headers[target.header].valid:
        return 0
    value = wrap(scope.value(target), item.width)
    return value if item.mask is None else value & item.mask


def matches(item: KeyField, match: Match, value: int) -> bool:
    """Return whether a value matches an entry's field."""
    match match:
        case Exact(value=wanted):
            return value == wanted
        case Lpm(value=wanted, prefix_length=length):
            return value >> (item.width - length) == wanted >> (item.width - length)
        case Ternary(value=wanted, mask=mask):
            return value & mask == wanted & mask
        case Range(low=low, high=high):
            return low <= value <= high
        case Optional(value=wanted):
            return wanted is None or value == wanted
