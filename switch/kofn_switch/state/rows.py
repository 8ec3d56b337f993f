"""The tables of a loaded program: the control plane's writes, carried out in the native part.

Only one thread at a time may call the methods (the engine serialises control operations). The packet thread may run
meanwhile.
"""

import ctypes
from collections.abc import Sequence

from kofn_switch.compiler.codegen.matching import numbered
from kofn_switch.compiler.ir.program import Program, Table
from kofn_switch.errors import InvalidEntry, SwitchError
from kofn_switch.native import Words, limbs_array, runtime
from kofn_switch.state.entries import Entry, Key
from kofn_switch.state.idle import IdleTimeouts
from kofn_switch.state.named import named
from kofn_switch.state.profile_rows import ProfileRows
from kofn_switch.state.profiles import Held
from kofn_switch.state.table_entries import TableEntries
from kofn_switch.state.tables import TableState, const_key, refuse_const

NOTHING = (1 << 32) - 1  # an id that no action has

NO_IDLE_TIMEOUT = "idle_timeout_ns must be set to 0 for tables which do not support idle timeout"
"""The words of p4lang's PI, which its tests look for."""


class Rows:
    """Entries and default actions of one instance of a program; `profiles`: its action profiles."""

    def __init__(self, program: Program, core: int, instance: int) -> None:
        """Install the program's own entries and default actions."""
        self.program = program
        self._native = runtime()
        self._core = core
        self._instance = instance
        self._numbers = numbered(program)
        self._tables = {
            table.name: TableEntries(TableState(table), core, instance, self._numbers.get(table.name))
            for table in program.tables
        }
        self.profiles = ProfileRows(program, core, instance)
        self.idle = IdleTimeouts(self._now_us)
        for entries in (self._tables[name] for name in self._numbers):
            self._write_default(entries.state)
            self._install(entries.state.table)

    # Tables

    def table(self, name: str) -> TableEntries:
        """Return the table of that name. Raise UnknownObject."""
        if name not in self._tables:
            named(self._numbers, "table", name)  # raises, and lists no tables that the compiler added
        return self._tables[name]

    def _install(self, table: Table) -> None:
        """Install the program's own entries, with BMv2's priorities reversed: here the highest wins."""
        entries = table.entries or ()
        top = max((entry.priority for entry in entries), default=0) + 1
        for own in entries:
            entry = Entry(
                table=table.name,
                key=const_key(table, own.key),
                priority=top - own.priority if table.prioritised else 0,
                action=self.program.actions[own.action].name,
                parameters=own.parameters,
            )
            self._insert(entry)

    def insert(self, entry: Entry) -> None:
        table = self.table(entry.table).state.table
        refuse_const(table)
        if not table.key:
            raise InvalidEntry(f"table {entry.table} has no key, so no entries: only its default action can be set")
        self._insert(entry)

    def _insert(self, entry: Entry) -> None:
        entries = self._tables[entry.table]
        stored = entries.state.stored(entry.key, entry.priority)
        self._check_idle(entries.state.table, entry)
        action, words, held = self._action(entries.state, entry)
        try:
            place = entries.insert(stored, entry, action, words, held)
        except SwitchError:
            self._release(entries.state.table, held)
            raise
        self._watch(entry, place)

    def modify(self, entry: Entry) -> None:
        entries = self.table(entry.table)
        refuse_const(entries.state.table)
        place = entries.find(entries.state.stored(entry.key, entry.priority))
        before = entries.held(place)
        self._check_idle(entries.state.table, entry)
        action, words, held = self._action(entries.state, entry, before)
        entries.modify(place, entry, action, words, held)
        self._watch(entry, place)
        self._release(entries.state.table, before)

    def delete(self, table: str, key: Key, priority: int) -> int:
        """See Engine.delete; return the entry's place."""
        entries = self.table(table)
        refuse_const(entries.state.table)
        stored = entries.state.stored(key, priority)
        place = entries.find(stored)
        held = entries.held(place)
        entries.delete(place, stored)
        self.idle.forget(table, place)
        self._release(entries.state.table, held)
        return place

    def insert_plain(self, plans: Words, request: bytes, at: int) -> tuple[int, int]:
        """See Engine.insert_plain."""
        behind, size = ctypes.c_uint64(at), len(request)
        done = self._native.write_plain(self._core, self._instance, plans, request, size, ctypes.byref(behind))
        return int(done), behind.value

    def _action(
        self, state: TableState, entry: Entry, replaced: Held | None = None
    ) -> tuple[int, list[int], Held | None]:
        """Return the native entry's action and parameters, and the reference to a profile that replaces `replaced`."""
        if state.table.profile is None:
            if entry.via is not None:
                raise InvalidEntry(f"table {state.table.name} has no action profile: an entry needs an action")
            action = state.action(entry.action, entry.parameters)
            return action.id, state.words(action, entry.parameters), None
        if entry.via is None:
            raise InvalidEntry(f"table {state.table.name} has an action profile: an entry needs a member, group or set")
        held = self.profiles.hold(state.table.profile, entry.via, replaced)
        return held.kind, [held.number], held

    def _release(self, table: Table, held: Held | None) -> None:
        if held is not None:
            self.profiles.release(str(table.profile), held)

    def entries(self, table: str, key: Key | None) -> list[Entry]:
        entries = self.table(table)
        if key is None:
            return list(entries)
        wanted = entries.state.normal(key)[1]
        return [entry for entry in entries if entries.state.normal(entry.key)[1] == wanted]

    def find(self, table: str, key: Key, priority: int) -> Entry:
        return self.table(table).entry(self.place_of(table, key, priority)[1])

    # Default actions

    def default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        default = self.table(table).state.default
        return None if default is None else (default[0].name, default[1])

    def set_default(self, table: str, action: str | None, parameters: Sequence[int]) -> None:
        """Set the default action, as Engine.set_default does; action None is the program's own default."""
        state = self.table(table).state
        if state.table.default_const:
            name, _ = self.default(table) or ("", ())
            raise InvalidEntry(f"the default action of table {table} is const: {name}")
        if action is not None and state.table.profile is not None:
            raise InvalidEntry(f"the default of table {table} is to do nothing: it has an action profile")
        state.default = (
            state.initial_default if action is None else (state.action(action, parameters), tuple(parameters))
        )
        self._write_default(state)

    def _write_default(self, state: TableState) -> None:
        action, words = NOTHING, [0] * state.limbs
        if state.default is not None:
            action, words = state.default[0].id, state.words(*state.default)
        number = self._numbers[state.table.name]
        self._native.table_set_miss(self._core, self._instance, number, action, limbs_array(words))

    # Counters, meters and times of entries

    def place_of(self, table: str, key: Key, priority: int) -> tuple[int, int]:
        """Return the numbers of a table and of an entry in the native part. Raise InvalidEntry, EntryNotFound."""
        entries = self.table(table)
        place = entries.find(entries.state.stored(key, priority))
        return self._numbers[table], place

    def number(self, table: str) -> int:
        """Return the number of a table in the native part."""
        self.table(table)
        return self._numbers[table]

    def elapsed_ns(self, table: str, key: Key, priority: int) -> int:
        entries = self.table(table)
        if not entries.state.table.idle_timeouts:
            raise InvalidEntry(f"table {table} has no idle timeouts")
        return self.idle.elapsed_ns(table, self.place_of(table, key, priority)[1])

    def _check_idle(self, table: Table, entry: Entry) -> None:
        if entry.idle_timeout_ns and not table.idle_timeouts:
            raise InvalidEntry(NO_IDLE_TIMEOUT)
        if entry.idle_timeout_ns < 0:
            raise InvalidEntry(f"an idle timeout is 0 (none) or more, not {entry.idle_timeout_ns} ns")

    def _watch(self, entry: Entry, place: int) -> None:
        if self.table(entry.table).state.table.idle_timeouts:
            address = self._native.table_extra(self._instance, self._numbers[entry.table], place)
            self.idle.watch(entry, place, ctypes.c_uint64.from_address(address))

    def _now_us(self) -> int:
        return int(self._native.core_now_us(self._core))
