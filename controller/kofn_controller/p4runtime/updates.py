"""Computes the P4Runtime updates that turn one state of a switch into another, and describes refused updates.

Pure functions of entities and p4info; the module knows nothing of connections.
"""

from collections.abc import Iterable
from typing import Any

import finsy as fy
from finsy.proto import p4r

from kofn_controller.errors import EntryError, PushError


def difference(present: Iterable[Any], wanted: Iterable[Any], schema: fy.P4Schema) -> list[p4r.Update]:
    """Return the updates that turn `present` into `wanted`: deletions, then changes and additions in wanted's order."""
    old = {_key(entity): entity for entity in _encoded(present, schema)}
    new = {_key(entity): entity for entity in _encoded(wanted, schema)}
    deletions = [p4r.Update(type=p4r.Update.DELETE, entity=old[key]) for key in old.keys() - new.keys()]
    return deletions + [
        p4r.Update(type=p4r.Update.MODIFY if key in old else p4r.Update.INSERT, entity=entity)
        for key, entity in new.items()
        if key not in old or _bytes(old[key]) != _bytes(entity)
    ]


def describe(error: fy.P4ClientError, schema: fy.P4Schema) -> str:
    """Describe a refused batch in one line: each failed update with P4's names, code and reason."""
    if not error.details:
        return f"{error.code.name}: {error.message}"
    return "; ".join(
        f"{_describe_update(failure.subvalue, schema)}: {failure.canonical_code.name} {failure.message}".rstrip()
        for failure in error.details.values()
    )


def refused(error: fy.P4ClientError, schema: fy.P4Schema) -> PushError:
    """Return the error of a refused batch: an EntryError if the switch found an update invalid."""
    codes = [failure.canonical_code for failure in error.details.values()]
    invalid = fy.GRPCStatusCode.INVALID_ARGUMENT in codes
    return (EntryError if invalid else PushError)(describe(error, schema))


def _describe_update(update: Any, schema: fy.P4Schema) -> str:
    """Return an update in words, such as `INSERT jobs hdr.kofn.job=1 set_job(k=4, ...)`."""
    kind = p4r.Update.Type.Name(update.type)
    entity = update.entity
    if entity.HasField("table_entry"):
        entry = fy.P4TableEntry.decode(entity, schema)
        return f"{kind} {entry.table_id} {entry.match_str(schema)} {entry.action_str(schema)}"
    if entity.packet_replication_engine_entry.HasField("multicast_group_entry"):
        group = fy.P4MulticastGroupEntry.decode(entity, schema)
        return f"{kind} multicast group {group.multicast_group_id}"
    return f"{kind} {entity.WhichOneof('entity')}"


def _encoded(entities: Iterable[Any], schema: fy.P4Schema) -> list[p4r.Entity]:
    """Return protobuf entities in canonical form; EntryError if the program lacks a name, or a value does not fit."""
    return [_canonical(_encode(entity, schema)) for entity in entities]


def _encode(entity: Any, schema: fy.P4Schema) -> p4r.Entity:
    try:
        encoded: p4r.Entity = entity.encode(schema)
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        what = f"an entry of table {entity.table_id!r}" if isinstance(entity, fy.P4TableEntry) else repr(entity)
        raise EntryError(f"{what} does not fit the P4 program: {error or type(error).__name__}") from error
    return encoded


def _canonical(entity: p4r.Entity) -> p4r.Entity:
    """Sort the lists of an entity whose order is free."""
    if entity.HasField("table_entry"):
        entity.table_entry.match.sort(key=lambda match: match.field_id)
        entity.table_entry.action.action.params.sort(key=lambda param: param.param_id)
    else:
        group = entity.packet_replication_engine_entry.multicast_group_entry
        group.replicas.sort(key=lambda replica: (replica.egress_port, replica.port, replica.instance))
    return entity


def _key(entity: p4r.Entity) -> tuple[object, ...]:
    """Return the part of an entity that identifies it."""
    if entity.HasField("table_entry"):
        entry = entity.table_entry
        return ("table", entry.table_id, entry.priority, *(_bytes(match) for match in entry.match))
    return ("group", entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id)


def _bytes(message: Any) -> bytes:
    """Return the deterministic bytes of a protobuf message."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data
