"""PacketReplicationEngineEntry: multicast groups, which are the engine's; clone sessions are refused."""

from collections.abc import Iterator

import grpc
from finsy.proto import p4r

from switch.engine import Engine
from switch.entries import Replica
from switch.p4runtime.bytestring import decode, encode
from switch.p4runtime.cells import UpdateType
from switch.p4runtime.refusal import Refused, invalid, not_found, unimplemented

GROUP_MAX = 0xFFFF
PORT_BITS = 9
INSTANCE_MAX = 0xFFFF


class Groups:
    """The packet replication engine as P4Runtime has it."""

    def __init__(self, engine: Engine) -> None:
        """The groups are the engine's."""
        self._engine = engine

    def write(self, kind: UpdateType, message: p4r.PacketReplicationEngineEntry) -> None:
        """INSERT, MODIFY or DELETE a multicast group; raises SwitchError."""
        entry = _multicast(message)
        group = entry.multicast_group_id
        if not 1 <= group <= GROUP_MAX:
            raise invalid(f"multicast group {group} is not possible; 1 to {GROUP_MAX} is allowed")
        exists = group in self._engine.groups()
        if kind == p4r.Update.INSERT and exists:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"multicast group {group} exists already; MODIFY it")
        if kind != p4r.Update.INSERT and not exists:
            raise not_found(f"there is no multicast group {group}; there are {sorted(self._engine.groups())}")
        if kind == p4r.Update.DELETE:
            self._engine.delete_group(group)
        else:
            self._engine.set_group(group, _replicas(entry))

    def read(self, query: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """One multicast group (NOT_FOUND), or all for group id 0.

        Ports are given as egress_port, the form that both finsy and p4runtime-shell write.
        """
        if query.clone_session_entry == p4r.CloneSessionEntry() and query.HasField("clone_session_entry"):
            return  # all clone sessions: there are none
        wanted = _multicast(query).multicast_group_id
        groups = {wanted: self._engine.group(wanted)} if wanted else self._engine.groups()
        for group, replicas in sorted(groups.items()):
            message = p4r.MulticastGroupEntry(multicast_group_id=group)
            for replica in replicas:
                message.replicas.add(egress_port=replica.port, instance=replica.instance)
            yield p4r.PacketReplicationEngineEntry(multicast_group_entry=message)


def _multicast(message: p4r.PacketReplicationEngineEntry) -> p4r.MulticastGroupEntry:
    kind = message.WhichOneof("type")
    if kind == "clone_session_entry":
        raise unimplemented("clone_session_entry: clone sessions are not offered; multicast groups are")
    if kind is None:
        raise invalid("the type of a packet_replication_engine_entry is not set; multicast_group_entry is offered")
    return message.multicast_group_entry


def _replicas(entry: p4r.MulticastGroupEntry) -> list[Replica]:
    group = entry.multicast_group_id
    if entry.metadata:
        raise unimplemented(f"metadata of multicast group {group} would be lost: it is not kept")
    replicas = [_replica(group, replica) for replica in entry.replicas]
    for replica in replicas:
        if replicas.count(replica) > 1:
            raise invalid(f"multicast group {group} has port {replica.port} instance {replica.instance} twice")
    return replicas


def _replica(group: int, replica: p4r.Replica) -> Replica:
    if replica.backup_replicas:
        raise unimplemented(f"multicast group {group}: backup replicas are not offered")
    if not 0 <= replica.instance <= INSTANCE_MAX:
        raise invalid(f"multicast group {group}: instance {replica.instance}; 0 to {INSTANCE_MAX} is allowed")
    return Replica(port=_port(group, replica), instance=replica.instance)


def _port(group: int, replica: p4r.Replica) -> int:
    """The port as bytes, or as the number that clients older than P4Runtime 1.4 send."""
    if replica.WhichOneof("port_kind") == "egress_port":
        return decode(encode(replica.egress_port), PORT_BITS, f"a port of multicast group {group}")
    return decode(replica.port, PORT_BITS, f"a port of multicast group {group}")
