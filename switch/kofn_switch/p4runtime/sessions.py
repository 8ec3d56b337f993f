"""CloneSessionEntry: the destinations of a program's clones."""

from collections.abc import Iterator

from finsy.proto import p4r

from kofn_switch.engine.copy_controls import SESSION_MAX
from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.cells import UpdateType
from kofn_switch.p4runtime.numbered import check_write, selected
from kofn_switch.p4runtime.refusal import invalid, unimplemented
from kofn_switch.p4runtime.replicas import decode_replicas, encode_replicas
from kofn_switch.state.entries import CloneSession


class Sessions:
    """The clone sessions as P4Runtime has them."""

    def __init__(self, engine: Engine) -> None:
        """Take the engine. Sessions of simple_switch_CLI are not visible here, as on BMv2."""
        self._engine = engine

    def write(self, kind: UpdateType, entry: p4r.CloneSessionEntry) -> None:
        """Carry out INSERT, MODIFY or DELETE of a session. Raise SwitchError."""
        number = entry.session_id
        check_write(kind, "clone session", number, self._engine.sessions(lasting=False), SESSION_MAX)
        if kind == p4r.Update.DELETE:
            self._engine.delete_session(number)
        else:
            self._engine.set_session(number, _session(entry))

    def read(self, number: int) -> Iterator[p4r.CloneSessionEntry]:
        """Yield one session (NOT_FOUND if it does not exist), or all sessions for number 0."""
        for found, session in selected("clone session", number, self._engine.sessions(lasting=False)):
            replicas = encode_replicas(session.replicas)
            yield p4r.CloneSessionEntry(session_id=found, replicas=replicas, packet_length_bytes=session.length)


def _session(entry: p4r.CloneSessionEntry) -> CloneSession:
    what = f"clone session {entry.session_id}"
    if entry.class_of_service:
        raise unimplemented(f"{what}: class of service {entry.class_of_service} is not offered; 0 is")
    if entry.packet_length_bytes < 0:
        raise invalid(f"{what}: packet_length_bytes is {entry.packet_length_bytes}; it must be 0 (all) or more")
    return CloneSession(replicas=decode_replicas(what, entry.replicas), length=entry.packet_length_bytes)
