"""PacketReplicationEngineEntry: the engine's multicast groups and clone sessions."""

from collections.abc import Iterator

from finsy.proto import p4r

from kofn_switch.engine.copy_controls import GROUP_MAX
from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.cells import UpdateType
from kofn_switch.p4runtime.numbered import check_write, selected
from kofn_switch.p4runtime.refusal import invalid, unimplemented
from kofn_switch.p4runtime.replicas import decode_replicas, encode_replicas
from kofn_switch.p4runtime.sessions import Sessions

Entry = p4r.PacketReplicationEngineEntry


class Groups:
    """The packet replication engine as P4Runtime has it."""

    def __init__(self, engine: Engine) -> None:
        """Take the engine. Groups of simple_switch_CLI are not visible here, as on BMv2."""
        self._engine = engine
        self._sessions = Sessions(engine)

    def write(self, kind: UpdateType, message: Entry) -> None:
        """Carry out INSERT, MODIFY or DELETE of a multicast group or a clone session. Raise SwitchError."""
        if _kind(message) == "clone_session_entry":
            self._sessions.write(kind, message.clone_session_entry)
        else:
            self._write_group(kind, message.multicast_group_entry)

    def read(self, query: Entry) -> Iterator[Entry]:
        """Yield one multicast group or clone session (NOT_FOUND if it does not exist), or all of its kind for number
        0."""
        if _kind(query) == "clone_session_entry":
            for session in self._sessions.read(query.clone_session_entry.session_id):
                yield Entry(clone_session_entry=session)
        else:
            for group in self._read_groups(query.multicast_group_entry.multicast_group_id):
                yield Entry(multicast_group_entry=group)

    def _write_group(self, kind: UpdateType, entry: p4r.MulticastGroupEntry) -> None:
        group = entry.multicast_group_id
        check_write(kind, "multicast group", group, self._engine.groups(lasting=False), GROUP_MAX)
        if kind == p4r.Update.DELETE:
            self._engine.delete_group(group)
            return
        if entry.metadata:
            raise unimplemented(f"metadata of multicast group {group} would be lost: it is not kept")
        self._engine.set_group(group, decode_replicas(f"multicast group {group}", entry.replicas))

    def _read_groups(self, wanted: int) -> Iterator[p4r.MulticastGroupEntry]:
        for group, replicas in selected("multicast group", wanted, self._engine.groups(lasting=False)):
            yield p4r.MulticastGroupEntry(multicast_group_id=group, replicas=encode_replicas(replicas))


def _kind(message: Entry) -> str:
    kind = message.WhichOneof("type")
    if kind is None:
        raise invalid(
            "the type of a packet_replication_engine_entry is not set; multicast_group_entry and clone_session_entry "
            "are offered"
        )
    return str(kind)
