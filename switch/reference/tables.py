"""Tables: every entry is looked at, the best that matches counts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from switch.compiler.program import Action, FieldOf, KeyField, Program, Table
from switch.entries import Entry, Exact, Key, Lpm, Match, Optional, Range, Ternary
from switch.reference.actions import Cell
from switch.reference.expressions import Scope
from switch.reference.packet import VALID, wrap
from switch.tables import TableState, const_key


@dataclass(slots=True)
class Row:
    """An entry with what stands beside it; `rank` orders the entries, the lowest wins."""

    entry: Entry
    rank: int
    cell: Cell = field(default_factory=Cell)


class ReferenceTable:
    """The entries of one table and its default.  Checks of what the control plane writes are TableState's."""

    def __init__(self, program: Program, table: Table) -> None:
        """With the program's own entries."""
        self.table = table
        self.state = TableState(table)
        self.rows: dict[tuple[Key, int], Row] = {}
        self.misses = Cell()
        own = table.entries or ()
        top = max((entry.priority for entry in own), default=0) + 1
        for entry in own:
            self._insert(
                Entry(
                    table=table.name,
                    key=const_key(table, entry.key),
                    priority=top - entry.priority if table.prioritised else 0,  # BMv2's turned round
                    action=program.actions[entry.action].name,
                    parameters=entry.parameters,
                )
            )

    def insert(self, entry: Entry) -> None:
        """Add an entry."""
        self._insert(entry)

    def _insert(self, entry: Entry) -> None:
        key, _ = self.state.key(entry.key, entry.priority)
        self.state.action(entry.action, entry.parameters)
        self.state.place(entry, key)
        self.rows[key, entry.priority] = Row(entry=entry, rank=self._rank(entry))

    def _rank(self, entry: Entry) -> int:
        """By priority, or by the prefix where there is none."""
        if self.table.prioritised:
            return -entry.priority
        return -sum(match.prefix_length for match in entry.key if isinstance(match, Lpm))

    def modify(self, entry: Entry) -> None:
        """Give an entry another action; its counter goes on."""
        key, _ = self.state.key(entry.key, entry.priority)
        self.state.action(entry.action, entry.parameters)
        self.state.replace(self.state.find(key, entry.priority), entry, key)
        self.rows[key, entry.priority].entry = entry

    def delete(self, key: Key, priority: int) -> None:
        """Remove an entry."""
        normal, _ = self.state.key(key, priority)
        self.state.remove(self.state.find(normal, priority), normal)
        del self.rows[normal, priority]

    def row(self, key: Key, priority: int) -> Row:
        """The entry with that key."""
        normal, _ = self.state.key(key, priority)
        self.state.find(normal, priority)
        return self.rows[normal, priority]

    def look_up(self, scope: Scope) -> Row | None:
        """The best entry for a packet; of equally good ones the oldest."""
        values = [key_value(item, scope) for item in self.table.key]
        hits = [row for row in self.rows.values() if self._hits(row.entry.key, values)]
        return min(hits, key=lambda row: row.rank, default=None)

    def _hits(self, key: Key, values: Sequence[int]) -> bool:
        return all(matches(item, match, value) for item, match, value in zip(self.table.key, key, values, strict=True))

    def action(self, row: Row | None) -> tuple[Action, tuple[int, ...]]:
        """What runs, and with which parameters."""
        if row is None:
            return self.state.default
        return self.state.actions[row.entry.action], row.entry.parameters


def key_value(item: KeyField, scope: Scope) -> int:
    """A field of the key as an unsigned number; zero when its header is not valid."""
    target = item.target
    if isinstance(target, FieldOf) and target.field != VALID and not scope.headers[target.header].valid:
        return 0
    value = wrap(scope.value(target), item.width)
    return value if item.mask is None else value & item.mask


def matches(item: KeyField, match: Match, value: int) -> bool:
    """Whether a value lies in what an entry says of a field."""
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
