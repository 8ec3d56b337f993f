"""The control plane's methods of the reference; see `engine.engine.Engine` for the effect and errors of each."""

from collections.abc import Sequence
from typing import TypeVar

from kofn_switch.compiler.codegen.layout import mask_of
from kofn_switch.compiler.ir.program import Array
from kofn_switch.errors import EntryNotFound, InvalidEntry
from kofn_switch.state.entries import CloneSession, Count, Entry, Key, Member, MemberGroup, MeterConfig, Replica
from kofn_switch.state.named import named
from kofn_switch.state.tables import refuse_const
from tests.switch.reference.call import CallContext, StateCell
from tests.switch.reference.pipeline import Controlled
from tests.switch.reference.tables import ReferenceTable

T = TypeVar("T")


class TableControls:
    """The methods that change and read tables and action profiles."""

    _around: CallContext
    _controlled: Controlled
    _groups: dict[int, tuple[Replica, ...]]
    _sessions: dict[int, CloneSession]
    _value_sets: dict[str, set[int]]

    # Tables

    def _table(self, name: str) -> ReferenceTable:
        return named(self._controlled.tables, "table", name)

    def insert(self, entry: Entry) -> None:
        table = self._table(entry.table)
        refuse_const(table.table)
        table.insert(entry)

    def modify(self, entry: Entry) -> None:
        """Give an entry another action or other parameters."""
        table = self._table(entry.table)
        refuse_const(table.table)
        table.modify(entry)

    def delete(self, table: str, key: Key, priority: int = 0) -> None:
        known = self._table(table)
        refuse_const(known.table)
        known.delete(key, priority)

    def entries(self, table: str) -> list[Entry]:
        """Return the entries of a table, const ones included, in order of insertion."""
        return [row.entry for row in self._table(table).rows.values()]

    def set_default(self, table: str, action: str, parameters: Sequence[int] = ()) -> None:
        """Set the default action."""
        self._table(table).set_default(action, parameters)

    def reset_default(self, table: str) -> None:
        """Return to the program's default action."""
        self._table(table).reset_default()

    def default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the default action's full name and parameters; None: a miss does nothing."""
        known = self._table(table).default
        return None if known is None else (known[0].name, known[1])

    # Action profiles

    def insert_member(self, member: Member) -> None:
        """Add a member to an action profile."""
        named(self._controlled.profiles, "action profile", member.profile).insert_member(member)

    def insert_member_group(self, group: MemberGroup) -> None:
        """Add a group to an action profile."""
        named(self._controlled.profiles, "action profile", group.profile).insert_group(group)


class CellControls(TableControls):
    """The methods that change and read counters, registers and meters."""

    def count(self, table: str, key: Key, priority: int = 0) -> Count:
        """Return the direct counter of an entry."""
        return _count(self._counted(table).row(key, priority).cell)

    def default_count(self, table: str) -> Count:
        """Return the direct counter of the default entry: the misses."""
        return _count(self._counted(table).misses)

    def set_count(self, table: str, key: Key, priority: int, count: Count) -> None:
        """Set the direct counter of an entry."""
        _set_count(self._counted(table).row(key, priority).cell, count)

    def _counted(self, name: str) -> ReferenceTable:
        table = self._table(name)
        if not table.table.counted:
            raise InvalidEntry(f"table {name} has no direct counter")
        return table

    def read_counter(self, name: str, index: int) -> Count:
        """Return one cell of an indirect counter."""
        return _count(_cell(named(self._around.counters, "counter", name), name, index))

    def write_counter(self, name: str, index: int, count: Count) -> None:
        """Set one cell of an indirect counter."""
        _set_count(_cell(named(self._around.counters, "counter", name), name, index), count)

    def read_register(self, name: str, index: int) -> int:
        """Return one cell of a register array, unsigned."""
        return _cell(named(self._around.registers, "register", name), name, index)

    def write_register(self, name: str, index: int, value: int) -> None:
        """Set one cell of a register array."""
        cells = named(self._around.registers, "register", name)
        _cell(cells, name, index)
        width = named(_by_name(self._around.program.registers), "register", name).width
        if not 0 <= value <= mask_of(width):
            raise InvalidEntry(f"register {name} has cells of bit<{width}>; {value:#x} does not fit")
        cells[index] = value

    # Meters

    def read_meter(self, name: str, index: int) -> MeterConfig | None:
        """Return the configuration of one cell of a meter array; None: all packets are green."""
        return _cell(named(self._around.meters, "meter", name), name, index).config

    def write_meter(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell of a meter array, its bursts full."""
        _cell(named(self._around.meters, "meter", name), name, index).configure(config)

    def set_meter(self, table: str, key: Key, priority: int, config: MeterConfig | None) -> None:
        """Configure an entry's direct meter, its bursts full."""
        known = self._table(table)
        if known.table.meter is None:
            raise InvalidEntry(f"table {table} has no direct meter")
        known.row(key, priority).meter.configure(config)


class Controls(CellControls):
    """The methods that change and read multicast groups, clone sessions and value sets, and all others."""

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Create or replace a multicast group."""
        self._groups[group] = tuple(replicas)

    def delete_group(self, group: int) -> None:
        if group not in self._groups:
            raise EntryNotFound(f"there is no multicast group {group}")
        del self._groups[group]

    def group(self, group: int) -> tuple[Replica, ...]:
        """Return the replicas of a multicast group."""
        if group not in self._groups:
            raise EntryNotFound(f"there is no multicast group {group}")
        return self._groups[group]

    def groups(self) -> dict[int, tuple[Replica, ...]]:
        return dict(self._groups)

    def set_session(self, number: int, session: CloneSession) -> None:
        """Create or replace a clone session."""
        self._sessions[number] = session

    def delete_session(self, number: int) -> None:
        if number not in self._sessions:
            raise EntryNotFound(f"there is no clone session {number}")
        del self._sessions[number]

    def sessions(self) -> dict[int, CloneSession]:
        return dict(self._sessions)

    # Value sets

    def value_set(self, name: str) -> tuple[int, ...]:
        """Return the keys in a parser's value set."""
        return tuple(named(self._value_sets, "value set", name))

    def set_value_set(self, name: str, keys: Sequence[int]) -> None:
        """Replace the keys of a value set."""
        known = named(self._value_sets, "value set", name)
        known.clear()
        known.update(keys)


def _by_name(arrays: Sequence[Array]) -> dict[str, Array]:
    return {array.name: array for array in arrays}


def _cell(cells: Sequence[T], name: str, index: int) -> T:
    if not 0 <= index < len(cells):
        raise InvalidEntry(f"{name} has cells 0..{len(cells) - 1}, not {index}")
    return cells[index]


def _count(cell: StateCell) -> Count:
    return Count(packets=cell.packets, bytes=cell.bytes)


def _set_count(cell: StateCell, count: Count) -> None:
    cell.packets, cell.bytes = count.packets, count.bytes
