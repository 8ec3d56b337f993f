"""TableEntry: writes and reads of tables by P4Runtime's rules, carried out by the engine."""

from collections.abc import Iterator

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import EntryNotFound
from kofn_switch.p4runtime.actions import check_total, decode_direct, decode_via, encode_action, encode_via, group_size
from kofn_switch.p4runtime.cells import UpdateType, count, counter_data, decode_config, encode_config, refuse_colours
from kofn_switch.p4runtime.match import decode_key, encode_key
from kofn_switch.p4runtime.p4info import ActionProfile, P4Info, Table
from kofn_switch.p4runtime.refusal import denied, invalid, unimplemented
from kofn_switch.state.entries import ActionSet, Entry, Key

NOTHING = "NoAction"  # P4's action that does nothing


class Tables:
    """The program's tables as P4Runtime has them. The engine holds the entries."""

    def __init__(self, engine: Engine, p4info: P4Info) -> None:
        """Take the `p4info` of the program that `engine` runs."""
        self._engine = engine
        self._p4info = p4info

    def write(self, kind: UpdateType, message: p4r.TableEntry) -> None:
        """Carry out INSERT, MODIFY or DELETE of an entry. Raise SwitchError."""
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
            self._engine.delete(table.name, decode_key(table, message.match), priority_of(table, message))

    def read(self, query: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """Yield the entries that the query's set fields select; table id 0 selects all tables' entries."""
        if query.table_id == 0:
            for table in self._p4info.tables:
                yield from self._read_table(table, query)
        else:
            yield from self._read_table(self._p4info.tables.get(query.table_id), query)

    def _insert(self, table: Table, message: p4r.TableEntry) -> None:
        self._check_not_const(table)
        if len(table.key) == 0:
            raise invalid(f"table {table.name} has no key, so no entries: MODIFY its default action instead")
        if not message.HasField("action"):
            raise invalid(f"a new entry of table {table.name} needs an action")
        self._check_direct(table, message)
        entry = self._entry(table, message)
        self._check_room(table, entry, None)
        self._engine.insert(entry)
        self._write_direct(table, entry.key, entry.priority, message)

    def _modify(self, table: Table, message: p4r.TableEntry) -> None:
        if message.HasField("action"):
            self._check_not_const(table)
        self._check_direct(table, message)
        key, priority = decode_key(table, message.match), priority_of(table, message)
        before = self._engine.entry(table.name, key, priority)
        if message.HasField("action"):
            entry = self._entry(table, message)
            self._check_room(table, entry, before)
            self._engine.modify(entry)
        self._write_direct(table, key, priority, message)
        if not message.HasField("meter_config") and self._p4info.direct_meter_of(table) is not None:
            self._engine.set_meter(table.name, key, priority, None)

    def _write_default(self, kind: UpdateType, table: Table, message: p4r.TableEntry) -> None:
        if kind != p4r.Update.MODIFY:
            raise invalid(f"the default action of table {table.name} always exists: it can only be MODIFIED")
        if message.match or message.priority:
            raise invalid(f"the default action of table {table.name} has neither match nor priority")
        if message.HasField("meter_config"):
            raise unimplemented(f"the meter of table {table.name} for misses: only hits are metered")
        self._check_direct(table, message)
        if table.const_default or table.profile_id:
            why = "const in the program" if table.const_default else "to do nothing: it has an action profile"
            raise denied(f"the default action of table {table.name} is {why}")
        if message.idle_timeout_ns or message.metadata or message.controller_metadata:
            raise invalid(f"the default entry of table {table.name} has neither metadata nor an idle timeout")
        if message.HasField("action"):
            self._engine.set_default(table.name, *decode_direct(table, message.action, default=True))
        else:
            self._engine.reset_default(table.name)
        if message.HasField("counter_data"):
            self._engine.set_default_count(table.name, count(message.counter_data))

    def _entry(self, table: Table, message: p4r.TableEntry) -> Entry:
        action, via = "", None
        parameters: tuple[int, ...] = ()
        if table.profile_id:
            via = decode_via(table, self._p4info.profiles.get(table.profile_id), message.action)
        else:
            action, parameters = decode_direct(table, message.action)
        return Entry(
            table=table.name,
            key=decode_key(table, message.match),
            priority=priority_of(table, message),
            action=action,
            parameters=parameters,
            via=via,
            idle_timeout_ns=message.idle_timeout_ns,
            metadata=message.metadata,
            controller_metadata=message.controller_metadata,
        )

    def _check_room(self, table: Table, entry: Entry, before: Entry | None) -> None:
        if isinstance(entry.via, ActionSet):
            profile = self._p4info.profiles.get(table.profile_id)
            check_total(self._engine, profile, _size(profile, entry) - (_size(profile, before) if before else 0))

    def _check_direct(self, table: Table, message: p4r.TableEntry) -> None:
        """Refuse counters and meters that the table lacks, before anything is written."""
        if message.HasField("counter_data"):
            self._p4info.check_counted(table)
            count(message.counter_data)
        if message.HasField("meter_config"):
            decode_config(self._p4info.metered(table), message.meter_config)

    def _write_direct(self, table: Table, key: Key, priority: int, message: p4r.TableEntry) -> None:
        if message.HasField("counter_data"):
            self._engine.set_count(table.name, key, priority, count(message.counter_data))
        if message.HasField("meter_config"):
            config = decode_config(self._p4info.metered(table), message.meter_config)
            self._engine.set_meter(table.name, key, priority, config)

    def _read_table(self, table: Table, query: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        refuse_colours(query.HasField("meter_counter_data"), f"the meter of table {table.name}")
        if query.HasField("time_since_last_hit") and query.table_id and not table.idle_timeouts:
            raise invalid(f"table {table.name} has no idle timeouts: leave time_since_last_hit unset")
        if query.is_default_action:
            yield self._default(table, query)
            return
        for entry in self._candidates(table, query):
            if self._selected(table, entry, query):
                message = self._message(table, entry)
                self._add_direct(table, entry, query, message)
                yield message

    def _candidates(self, table: Table, query: p4r.TableEntry) -> list[Entry]:
        """Return all entries, or the entries of the query's key."""
        if not query.match:
            return self._engine.entries(table.name)
        key = decode_key(table, query.match)
        if table.needs_priority and not query.priority:
            return self._engine.entries(table.name, key)
        try:
            return [self._engine.entry(table.name, key, query.priority)]
        except EntryNotFound:
            return []

    def _selected(self, table: Table, entry: Entry, query: p4r.TableEntry) -> bool:
        if query.priority and entry.priority != query.priority:
            return False
        if query.metadata and entry.metadata != query.metadata:
            return False
        if query.controller_metadata and entry.controller_metadata != query.controller_metadata:
            return False
        action_id = query.action.action.action_id
        return not action_id or table.actions.get(action_id).name == entry.action

    def _message(self, table: Table, entry: Entry) -> p4r.TableEntry:
        return p4r.TableEntry(
            table_id=table.id,
            match=encode_key(table, entry.key),
            priority=entry.priority,
            action=self._action_message(table, entry),
            is_const=table.const_entries,
            idle_timeout_ns=entry.idle_timeout_ns,
            metadata=entry.metadata,
            controller_metadata=entry.controller_metadata,
        )

    def key_message(self, entry: Entry) -> p4r.TableEntry:
        """Return a message with the entry's key and its client's metadata, for notifications."""
        message = self._message(self._p4info.tables.named(entry.table), entry)
        message.ClearField("action")
        return message

    def _add_direct(self, table: Table, entry: Entry, query: p4r.TableEntry, message: p4r.TableEntry) -> None:
        """Add the entry's counter, meter and idle time, if the query asks for them and the table has them."""
        place = table.name, entry.key, entry.priority
        if query.HasField("counter_data") and self._p4info.direct_counter_of(table) is not None:
            message.counter_data.CopyFrom(counter_data(self._engine.count(*place)))
        if query.HasField("meter_config") and self._p4info.direct_meter_of(table) is not None:
            config = encode_config(self._engine.meter(*place))
            if config is not None:
                message.meter_config.CopyFrom(config)
        if query.HasField("time_since_last_hit") and table.idle_timeouts:
            message.time_since_last_hit.elapsed_ns = self._engine.time_since_hit(*place)

    def _default(self, table: Table, query: p4r.TableEntry) -> p4r.TableEntry:
        const = table.const_default or bool(table.profile_id)
        message = p4r.TableEntry(table_id=table.id, is_default_action=True, is_const=const)
        name, parameters = self._engine.default(table.name) or (NOTHING, ())
        if name != NOTHING or any(action.name == NOTHING for action in self._p4info.actions):
            message.action.action.CopyFrom(encode_action(self._p4info, name, parameters))
        if query.HasField("counter_data") and self._p4info.direct_counter_of(table) is not None:
            message.counter_data.CopyFrom(counter_data(self._engine.default_count(table.name)))
        return message

    def _action_message(self, table: Table, entry: Entry) -> p4r.TableAction:
        if table.profile_id:
            return encode_via(self._p4info, self._p4info.profiles.get(table.profile_id), entry)
        return p4r.TableAction(action=encode_action(self._p4info, entry.action, entry.parameters))

    def _check_not_const(self, table: Table) -> None:
        if table.const_entries:
            raise denied(f"the entries of table {table.name} are const in the program")

    def _check_offered(self, table: Table, message: p4r.TableEntry) -> None:
        if message.is_const:
            raise invalid(f"is_const of an entry of table {table.name} is the program's to set, not a client's")
        refuse_colours(message.HasField("meter_counter_data"), f"the meter of table {table.name}")
        if message.HasField("time_since_last_hit"):
            raise invalid("has_time_since_last_hit must not be set in WriteRequest")  # PI's words
        if message.idle_timeout_ns < 0:
            raise invalid(f"idle_timeout_ns must be 0 (never) or more, got {message.idle_timeout_ns}")


def priority_of(table: Table, message: p4r.TableEntry) -> int:
    """Return the entry's priority, which is above 0 if the table's entries can overlap, else 0."""
    if table.needs_priority and message.priority <= 0:
        raise invalid(f"an entry of table {table.name} needs a priority above 0, not {message.priority}")
    if not table.needs_priority and message.priority != 0:
        raise invalid(f"an entry of table {table.name} has no priority, not {message.priority}: leave it unset")
    return message.priority


def _size(profile: ActionProfile, entry: Entry) -> int:
    """Return the size of the entry's action set."""
    return (
        group_size(profile, [action.weight for action in entry.via.actions]) if isinstance(entry.via, ActionSet) else 0
    )
