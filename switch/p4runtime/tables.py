"""TableEntry and DirectCounterEntry: writes and reads of tables by P4Runtime's rules, carried out by the engine."""

from collections.abc import Iterator

from finsy.proto import p4r

from switch.engine import Engine
from switch.entries import Count, Entry, Key
from switch.p4runtime.bytestring import decode, encode
from switch.p4runtime.match import decode_key, encode_key
from switch.p4runtime.p4info import P4Info, Table
from switch.p4runtime.refusal import denied, invalid, not_found, unimplemented

UpdateType = int  # p4r.Update.INSERT, MODIFY or DELETE


class Tables:
    """The program's tables as P4Runtime has them.  Holds no entries: they are the engine's."""

    def __init__(self, engine: Engine, p4info: P4Info) -> None:
        """`p4info` describes the program that `engine` runs."""
        self._engine = engine
        self._p4info = p4info

    def write(self, kind: UpdateType, message: p4r.TableEntry) -> None:
        """INSERT, MODIFY or DELETE; raises SwitchError."""
        table = self._p4info.tables.get(message.table_id)
        if kind != p4r.Update.DELETE:
            self._check_offered(table, message)
        if message.is_default_action:
            self._write_default(kind, table, message)
        elif kind == p4r.Update.INSERT:
            self._insert(table, message)
        elif kind == p4r.Update.MODIFY:
            self._modify(table, message)
        else:
            self._check_not_const(table)
            self._engine.delete(table.name, decode_key(table, message.match), _priority(table, message))

    def read(self, query: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """The entries that the query's set fields select; table id 0 selects all tables' entries."""
        if query.table_id == 0:
            for table in self._p4info.tables:
                yield from self._read_table(table, query)
        else:
            yield from self._read_table(self._p4info.tables.get(query.table_id), query)

    def write_count(self, kind: UpdateType, message: p4r.DirectCounterEntry) -> None:
        """MODIFY sets the counter of an entry; nothing else exists for direct counters."""
        table = self._counted_table(message.table_entry.table_id)
        if kind != p4r.Update.MODIFY:
            raise invalid(f"a direct counter of table {table.name} can only be MODIFIED: it lives with its entry")
        if message.table_entry.is_default_action:
            raise unimplemented(f"setting the default entry's counter of table {table.name}; reading it is offered")
        if message.HasField("data"):
            key, priority = decode_key(table, message.table_entry.match), _priority(table, message.table_entry)
            self._engine.set_count(table.name, key, priority, count(message.data))

    def read_counts(self, query: p4r.DirectCounterEntry) -> Iterator[p4r.DirectCounterEntry]:
        """The counters of the entries that the query's table_entry selects; table id 0: of all tables that count."""
        table_id = query.table_entry.table_id
        tables = [self._counted_table(table_id)] if table_id else self._counted_tables()
        wanted = p4r.TableEntry()
        wanted.CopyFrom(query.table_entry)
        wanted.counter_data.SetInParent()
        for table in tables:
            for entry in self._read_table(table, wanted):
                counted = p4r.DirectCounterEntry(data=entry.counter_data)
                for name in ("action", "counter_data"):
                    entry.ClearField(name)
                counted.table_entry.CopyFrom(entry)
                yield counted

    def _insert(self, table: Table, message: p4r.TableEntry) -> None:
        self._check_not_const(table)
        if len(table.key) == 0:
            raise invalid(f"table {table.name} has no key, so no entries: MODIFY its default action instead")
        if not message.HasField("action"):
            raise invalid(f"a new entry of table {table.name} needs an action")
        entry = self._entry(table, message)
        self._engine.insert(entry)
        if message.HasField("counter_data"):
            self._set_count(table, entry.key, entry.priority, message)

    def _modify(self, table: Table, message: p4r.TableEntry) -> None:
        key, priority = decode_key(table, message.match), _priority(table, message)
        if message.HasField("action"):
            self._check_not_const(table)
            self._engine.modify(self._entry(table, message))
        else:
            self._find(table, key, priority)
        if message.HasField("counter_data"):
            self._set_count(table, key, priority, message)

    def _write_default(self, kind: UpdateType, table: Table, message: p4r.TableEntry) -> None:
        if kind != p4r.Update.MODIFY:
            raise invalid(f"the default action of table {table.name} always exists: it can only be MODIFIED")
        if message.match or message.priority:
            raise invalid(f"the default action of table {table.name} has neither match nor priority")
        if message.HasField("counter_data"):
            raise unimplemented(f"setting the default entry's counter of table {table.name}; reading it is offered")
        if table.const_default:
            raise denied(f"the default action of table {table.name} is const in the program")
        if message.HasField("action"):
            self._engine.set_default(table.name, *_action(table, message.action, default=True))
        else:
            self._engine.reset_default(table.name)

    def _entry(self, table: Table, message: p4r.TableEntry) -> Entry:
        action, parameters = _action(table, message.action, default=False)
        return Entry(
            table=table.name,
            key=decode_key(table, message.match),
            priority=_priority(table, message),
            action=action,
            parameters=parameters,
        )

    def _set_count(self, table: Table, key: Key, priority: int, message: p4r.TableEntry) -> None:
        self._counted_table(table.id)
        self._engine.set_count(table.name, key, priority, count(message.counter_data))

    def _find(self, table: Table, key: Key, priority: int) -> Entry:
        for entry in self._engine.entries(table.name):
            if entry.key == key and entry.priority == priority:
                return entry
        raise not_found(f"table {table.name} has no entry with that key")

    def _read_table(self, table: Table, query: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        counted = query.HasField("counter_data") and self._p4info.direct_counter_of(table) is not None
        if query.is_default_action:
            yield self._default(table, counted)
            return
        key = decode_key(table, query.match) if query.match else None
        for entry in self._engine.entries(table.name):
            if self._selected(table, entry, key, query):
                message = self._message(table, entry)
                if counted:
                    cell = self._engine.count(table.name, entry.key, entry.priority)
                    message.counter_data.CopyFrom(counter_data(cell))
                yield message

    def _selected(self, table: Table, entry: Entry, key: Key | None, query: p4r.TableEntry) -> bool:
        if key is not None and entry.key != key:
            return False
        if query.priority and entry.priority != query.priority:
            return False
        action_id = query.action.action.action_id
        return not action_id or table.actions.get(action_id).name == entry.action

    def _message(self, table: Table, entry: Entry) -> p4r.TableEntry:
        return p4r.TableEntry(
            table_id=table.id,
            match=encode_key(table, entry.key),
            priority=entry.priority,
            action=self._action_message(entry.action, entry.parameters),
            is_const=table.const_entries,
        )

    def _default(self, table: Table, counted: bool) -> p4r.TableEntry:
        action = self._action_message(*(self._engine.default(table.name) or ("NoAction", ())))
        message = p4r.TableEntry(table_id=table.id, is_default_action=True, action=action, is_const=table.const_default)
        if counted:
            message.counter_data.CopyFrom(counter_data(self._engine.default_count(table.name)))
        return message

    def _action_message(self, name: str, parameters: tuple[int, ...]) -> p4r.TableAction:
        action = self._p4info.actions.named(name)
        message = p4r.Action(action_id=action.id)
        for parameter, value in zip(action.parameters, parameters, strict=True):
            message.params.add(param_id=parameter.id, value=encode(value))
        return p4r.TableAction(action=message)

    def _counted_tables(self) -> list[Table]:
        return [self._p4info.tables.get(counter.table_id) for counter in self._p4info.direct_counters]

    def _counted_table(self, table_id: int) -> Table:
        table = self._p4info.tables.get(table_id)
        if self._p4info.direct_counter_of(table) is None:
            names = ", ".join(counted.name for counted in self._counted_tables()) or "no table has one"
            raise invalid(f"table {table.name} has no direct counter; tables that have one: {names}")
        return table

    def _check_not_const(self, table: Table) -> None:
        if table.const_entries:
            raise denied(f"the entries of table {table.name} are const in the program")

    def _check_offered(self, table: Table, message: p4r.TableEntry) -> None:
        if message.is_const:
            raise invalid(f"is_const of an entry of table {table.name} is the program's to set, not a client's")
        if table.indirect:
            raise unimplemented(f"table {table.name} has an action profile or selector")
        for name in ("metadata", "controller_metadata", "idle_timeout_ns"):
            if getattr(message, name):
                raise unimplemented(f"{name} of an entry of table {table.name} would be lost: it is not kept")
        if message.HasField("meter_config") or message.HasField("meter_counter_data"):
            raise unimplemented(f"the meter of an entry of table {table.name}: there are no meters")


def count(data: p4r.CounterData) -> Count:
    """The engine's count; INVALID_ARGUMENT for negative ones."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"a counter cannot be {data.packet_count} packets, {data.byte_count} bytes: 0 or more is allowed")
    return Count(packets=data.packet_count, bytes=data.byte_count)


def counter_data(cell: Count) -> p4r.CounterData:
    """The message of a count."""
    return p4r.CounterData(packet_count=cell.packets, byte_count=cell.bytes)


def _priority(table: Table, message: p4r.TableEntry) -> int:
    if table.needs_priority and message.priority <= 0:
        raise invalid(f"an entry of table {table.name} needs a priority above 0, not {message.priority}")
    if not table.needs_priority and message.priority != 0:
        raise invalid(f"an entry of table {table.name} has no priority, not {message.priority}: leave it unset")
    return message.priority


def _action(table: Table, message: p4r.TableAction, *, default: bool) -> tuple[str, tuple[int, ...]]:
    """The action's name and its parameters in order."""
    kind = message.WhichOneof("type")
    if kind != "action":
        raise invalid(f"table {table.name} takes an action, not {kind or 'an unset one'}")
    use = table.actions.get(message.action.action_id)
    if default and not use.as_default:
        raise denied(f"action {use.name} may not be the default action of table {table.name} (table_only)")
    if not default and not use.in_entries:
        raise denied(f"action {use.name} may only be the default action of table {table.name} (default_only)")
    values: dict[int, int] = {}
    for given in message.action.params:
        parameter = use.action.parameters.get(given.param_id)
        if parameter.id in values:
            raise invalid(f"parameter {parameter.name} of action {use.name} is given twice")
        values[parameter.id] = decode(given.value, parameter.width, f"parameter {parameter.name} of action {use.name}")
    missing = [parameter.name for parameter in use.action.parameters if parameter.id not in values]
    if missing:
        raise invalid(f"action {use.name} needs a value for {', '.join(missing)}")
    return use.name, tuple(values[parameter.id] for parameter in use.action.parameters)
