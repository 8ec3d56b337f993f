"""DirectCounterEntry and DirectMeterEntry: what stands beside the entries of tables."""

from collections.abc import Iterator

from finsy.proto import p4r

from switch.engine import Engine
from switch.p4runtime.cells import UpdateType, count, decode_config, refuse_colours
from switch.p4runtime.match import decode_key
from switch.p4runtime.p4info import P4Info, Table
from switch.p4runtime.refusal import invalid, unimplemented
from switch.p4runtime.tables import Tables, priority_of


class Direct:
    """Direct counters and meters as P4Runtime has them."""

    def __init__(self, engine: Engine, p4info: P4Info, tables: Tables) -> None:
        """`p4info` describes the program that `engine` runs, `tables` are its tables."""
        self._engine = engine
        self._p4info = p4info
        self._tables = tables

    def write_count(self, kind: UpdateType, message: p4r.DirectCounterEntry) -> None:
        """MODIFY sets the counter of an entry; nothing changes when there is no data."""
        table = self._table(kind, "counter", message.table_entry)
        self._p4info.check_counted(table)
        if message.HasField("data") and message.table_entry.is_default_action:
            self._engine.set_default_count(table.name, count(message.data))
        elif message.HasField("data"):
            key, priority = decode_key(table, message.table_entry.match), priority_of(table, message.table_entry)
            self._engine.set_count(table.name, key, priority, count(message.data))

    def write_meter(self, kind: UpdateType, message: p4r.DirectMeterEntry) -> None:
        """MODIFY configures the meter of an entry; without a config all is green."""
        table = self._table(kind, "meter", message.table_entry)
        meter = self._p4info.metered(table)
        if message.table_entry.is_default_action:
            raise unimplemented(f"the meter of table {table.name} for misses: only hits are metered")
        refuse_colours(message.HasField("counter_data"), f"meter {meter.name}")
        config = decode_config(meter, message.config if message.HasField("config") else None)
        key, priority = decode_key(table, message.table_entry.match), priority_of(table, message.table_entry)
        self._engine.set_meter(table.name, key, priority, config)

    def _table(self, kind: UpdateType, what: str, entry: p4r.TableEntry) -> Table:
        table = self._p4info.tables.get(entry.table_id)
        if kind != p4r.Update.MODIFY:
            raise invalid(f"a direct {what} of table {table.name} can only be MODIFIED: it lives with its entry")
        return table

    def read_counts(self, query: p4r.DirectCounterEntry) -> Iterator[p4r.DirectCounterEntry]:
        """The counters of the entries that the query's table_entry selects; table id 0: of all tables that count."""
        table_id = query.table_entry.table_id
        if table_id:
            self._p4info.check_counted(self._p4info.tables.get(table_id))
        wanted = p4r.TableEntry()
        wanted.CopyFrom(query.table_entry)
        wanted.counter_data.SetInParent()
        for number in [table_id] if table_id else [counter.table_id for counter in self._p4info.direct_counters]:
            for entry in self._read(number, wanted):
                counted = p4r.DirectCounterEntry(data=entry.counter_data)
                counted.table_entry.CopyFrom(_bare(entry))
                yield counted

    def read_meters(self, query: p4r.DirectMeterEntry) -> Iterator[p4r.DirectMeterEntry]:
        """The meters of the entries that the query's table_entry selects; table id 0: of all tables with meters."""
        refuse_colours(query.HasField("counter_data"), "a direct meter")
        table_id = query.table_entry.table_id
        if table_id:
            self._p4info.metered(self._p4info.tables.get(table_id))
        wanted = p4r.TableEntry()
        wanted.CopyFrom(query.table_entry)
        wanted.meter_config.SetInParent()
        for number in [table_id] if table_id else [meter.table_id for meter in self._p4info.direct_meters]:
            for entry in self._read(number, wanted):
                config = entry.meter_config if entry.HasField("meter_config") else None
                metered = p4r.DirectMeterEntry(config=config)
                metered.table_entry.CopyFrom(_bare(entry))
                yield metered

    def _read(self, table_id: int, wanted: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """The entries of one table; NOT_FOUND when there is none of the key that is asked for."""
        wanted.table_id = table_id
        found = list(self._tables.read(wanted))
        if wanted.match and not found:
            table = self._p4info.tables.get(table_id)
            self._engine.entry(table.name, decode_key(table, wanted.match), wanted.priority)
        yield from found


def _bare(entry: p4r.TableEntry) -> p4r.TableEntry:
    for name in ("action", "counter_data", "meter_config"):
        entry.ClearField(name)
    return entry
