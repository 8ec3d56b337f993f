"""DirectCounterEntry and DirectMeterEntry: the counters and meters of tables' entries."""

from collections.abc import Iterable, Iterator

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.cells import UpdateType, count, decode_config, refuse_colours
from kofn_switch.p4runtime.match import decode_key
from kofn_switch.p4runtime.p4info import DirectCounter, DirectMeter, P4Info, Table
from kofn_switch.p4runtime.refusal import invalid, unimplemented
from kofn_switch.p4runtime.tables import Tables, priority_of


class Direct:
    """Direct counters and meters as P4Runtime has them."""

    def __init__(self, engine: Engine, p4info: P4Info, tables: Tables) -> None:
        """Take the `p4info` and the `tables` of the program that `engine` runs."""
        self._engine = engine
        self._p4info = p4info
        self._tables = tables

    def write_count(self, kind: UpdateType, message: p4r.DirectCounterEntry) -> None:
        """Set the counter of an entry by MODIFY. A message without data changes nothing."""
        table = self._table(kind, "counter", message.table_entry)
        self._p4info.check_counted(table)
        if message.HasField("data") and message.table_entry.is_default_action:
            self._engine.set_default_count(table.name, count(message.data))
        elif message.HasField("data"):
            key, priority = decode_key(table, message.table_entry.match), priority_of(table, message.table_entry)
            self._engine.set_count(table.name, key, priority, count(message.data))

    def write_meter(self, kind: UpdateType, message: p4r.DirectMeterEntry) -> None:
        """Configure the meter of an entry by MODIFY; without a config all is green."""
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
        """Yield the counters of the entries that the query's table_entry selects. Table id 0 selects all tables with
        counters."""
        if query.table_entry.table_id:
            self._p4info.check_counted(self._p4info.tables.get(query.table_entry.table_id))
        for entry in self._read(query.table_entry, "counter_data", self._p4info.direct_counters):
            yield p4r.DirectCounterEntry(table_entry=_bare(entry), data=entry.counter_data)

    def read_meters(self, query: p4r.DirectMeterEntry) -> Iterator[p4r.DirectMeterEntry]:
        """Yield the meters of the entries that the query's table_entry selects. Table id 0 selects all tables with
        meters."""
        refuse_colours(query.HasField("counter_data"), "a direct meter")
        if query.table_entry.table_id:
            self._p4info.metered(self._p4info.tables.get(query.table_entry.table_id))
        for entry in self._read(query.table_entry, "meter_config", self._p4info.direct_meters):
            config = entry.meter_config if entry.HasField("meter_config") else None
            yield p4r.DirectMeterEntry(table_entry=_bare(entry), config=config)

    def _read(
        self, query: p4r.TableEntry, field: str, everywhere: Iterable[DirectCounter | DirectMeter]
    ) -> Iterator[p4r.TableEntry]:
        """Yield the entries that the query selects, with the field named `field`. Table id 0 selects the tables in
        `everywhere`."""
        wanted = p4r.TableEntry()
        wanted.CopyFrom(query)
        getattr(wanted, field).SetInParent()
        for table_id in [query.table_id] if query.table_id else [table.table_id for table in everywhere]:
            wanted.table_id = table_id
            yield from self._read_table(wanted)

    def _read_table(self, wanted: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """Yield the entries of one table; NOT_FOUND if there is no entry with the requested key."""
        found = list(self._tables.read(wanted))
        if wanted.match and not found:
            table = self._p4info.tables.get(wanted.table_id)
            self._engine.entry(table.name, decode_key(table, wanted.match), wanted.priority)
        yield from found


def _bare(entry: p4r.TableEntry) -> p4r.TableEntry:
    """Return the entry without action, counter and meter."""
    bare = p4r.TableEntry()
    bare.CopyFrom(entry)
    for name in ("action", "counter_data", "meter_config"):
        bare.ClearField(name)
    return bare
