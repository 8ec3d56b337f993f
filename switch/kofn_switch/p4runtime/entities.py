"""Dispatches each P4Runtime update or query to the handler of its kind of entity; other kinds are refused by name."""

from collections.abc import Callable, Iterator

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import SwitchError
from kofn_switch.p4runtime.arrays import Arrays
from kofn_switch.p4runtime.cells import UpdateType
from kofn_switch.p4runtime.digests import Digests
from kofn_switch.p4runtime.direct import Direct
from kofn_switch.p4runtime.groups import Groups
from kofn_switch.p4runtime.meters import Meters
from kofn_switch.p4runtime.p4info import P4Info
from kofn_switch.p4runtime.plain_inserts import PlainInserts
from kofn_switch.p4runtime.profiles import Profiles
from kofn_switch.p4runtime.refusal import Refused, choices, invalid, refusal, unimplemented
from kofn_switch.p4runtime.tables import Tables
from kofn_switch.p4runtime.value_sets import ValueSets

Writer = Callable[[UpdateType, p4r.Entity], None]
Reader = Callable[[p4r.Entity], Iterator[p4r.Entity]]


class Entities:
    """Everything that can be written and read while one program runs."""

    def __init__(self, engine: Engine, p4info: P4Info, digests: Digests) -> None:
        """Take the `p4info` of the program that `engine` runs."""
        tables, arrays, groups = Tables(engine, p4info), Arrays(engine, p4info), Groups(engine)
        direct, meters, profiles = Direct(engine, p4info, tables), Meters(engine, p4info), Profiles(engine, p4info)
        value_sets = ValueSets(engine, p4info)
        self.tables = tables
        self.plain = PlainInserts(engine, p4info)
        self._writers: dict[str, Writer] = {
            "table_entry": lambda kind, entity: tables.write(kind, entity.table_entry),
            "counter_entry": lambda kind, entity: arrays.write_counter(kind, entity.counter_entry),
            "direct_counter_entry": lambda kind, entity: direct.write_count(kind, entity.direct_counter_entry),
            "meter_entry": lambda kind, entity: meters.write(kind, entity.meter_entry),
            "value_set_entry": lambda kind, entity: value_sets.write(kind, entity.value_set_entry),
            "direct_meter_entry": lambda kind, entity: direct.write_meter(kind, entity.direct_meter_entry),
            "action_profile_member": lambda kind, entity: profiles.write_member(kind, entity.action_profile_member),
            "action_profile_group": lambda kind, entity: profiles.write_group(kind, entity.action_profile_group),
            "register_entry": lambda kind, entity: arrays.write_register(kind, entity.register_entry),
            "packet_replication_engine_entry": lambda kind, entity: groups.write(
                kind, entity.packet_replication_engine_entry
            ),
            "digest_entry": lambda kind, entity: digests.write(kind, entity.digest_entry),
        }
        self._readers: dict[str, Reader] = {
            "table_entry": lambda entity: (p4r.Entity(table_entry=e) for e in tables.read(entity.table_entry)),
            "counter_entry": lambda entity: (
                p4r.Entity(counter_entry=e) for e in arrays.read_counter(entity.counter_entry)
            ),
            "direct_counter_entry": lambda entity: (
                p4r.Entity(direct_counter_entry=e) for e in direct.read_counts(entity.direct_counter_entry)
            ),
            "value_set_entry": lambda entity: (
                p4r.Entity(value_set_entry=e) for e in value_sets.read(entity.value_set_entry)
            ),
            "meter_entry": lambda entity: (p4r.Entity(meter_entry=e) for e in meters.read(entity.meter_entry)),
            "direct_meter_entry": lambda entity: (
                p4r.Entity(direct_meter_entry=e) for e in direct.read_meters(entity.direct_meter_entry)
            ),
            "action_profile_member": lambda entity: (
                p4r.Entity(action_profile_member=e) for e in profiles.read_members(entity.action_profile_member)
            ),
            "action_profile_group": lambda entity: (
                p4r.Entity(action_profile_group=e) for e in profiles.read_groups(entity.action_profile_group)
            ),
            "register_entry": lambda entity: (
                p4r.Entity(register_entry=e) for e in arrays.read_register(entity.register_entry)
            ),
            "packet_replication_engine_entry": lambda entity: (
                p4r.Entity(packet_replication_engine_entry=e)
                for e in groups.read(entity.packet_replication_engine_entry)
            ),
            "digest_entry": lambda entity: (
                p4r.Entity(digest_entry=e) for e in digests.read(entity.digest_entry.digest_id)
            ),
        }

    def write_all(self, request: p4r.WriteRequest) -> list[Refused | None]:
        """Carry out all updates in order, even if some fail. Return for each update the reason for its refusal, or
        None."""
        outcomes: list[Refused | None] = []
        data, at, updates = request.SerializeToString(), 0, len(request.updates)
        while len(outcomes) < updates:
            done, at = self.plain.carry_out(data, at)
            outcomes += [None] * done
            if len(outcomes) < updates:
                outcomes.append(attempt(self.write, request.updates[len(outcomes)]))
        return outcomes

    def write(self, update: p4r.Update) -> None:
        """Carry out one update. Raise SwitchError."""
        kind = update.type
        if kind not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
            raise invalid(f"update type {kind} is not known; INSERT, MODIFY or DELETE is")
        self._writers[self._offered(update.entity)](kind, update.entity)

    def read(self, query: p4r.Entity) -> Iterator[p4r.Entity]:
        """Return the entities that the query selects. Raise SwitchError, also during the iteration."""
        return self._readers[self._offered(query)](query)

    def _offered(self, entity: p4r.Entity) -> str:
        kind = entity.WhichOneof("entity")
        if kind is None:
            raise invalid(f"the entity is not set; {choices(self._writers)} is offered")
        if kind not in self._writers:
            raise unimplemented(f"{kind} is not offered; {choices(self._writers)} is")
        return kind


def attempt(write: Callable[[p4r.Update], None], update: p4r.Update) -> Refused | None:
    """Return the reason for which the update was refused; None: it was carried out."""
    try:
        write(update)
    except SwitchError as error:
        return refusal(error)
    return None
